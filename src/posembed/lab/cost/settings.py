"""The settings of a measurement of cost."""

from __future__ import annotations

from dataclasses import dataclass

from posembed.lab.runs.spec import option


def every_encoding() -> tuple[str, ...]:
    from posembed.nn.encodings import names_for

    return names_for("decoder")


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """The sizes that all encodings are measured at. ``measure.checked`` refuses those that cannot be measured."""

    encodings: tuple[str, ...] = option(
        "Encodings joined by commas; NAME+window applies a causal window. Default: all.", default_factory=every_encoding
    )
    batch: int = option("Sequences per batch.", default=1)
    length: int = option("Tokens per sequence.", default=512)
    width: int = option("Width of the model.", default=768)
    heads: int = option("Attention heads.", default=12)
    layers: int = option("Layers, which also decide the default window.", default=12)
    vocabulary: int = option("Rows of the token table.", default=50_257)
    window: int | None = option(
        "Causal window of the encodings that need one. Default: the lab's for these layers and this length.",
        default=None,
    )
    longest: int = option("Longest sequence of the growth measurement, which doubles from 512.", default=131_072)
    seconds: float = option("Least time that the encodings take turns for, in seconds.", default=30.0)
    device: str = option("cpu or cuda.", default="cpu")
