"""The settings of a fine-tuning: everything that decides its result, except the checkpoint and the texts.

A field made by ``option`` is also an option of ``posembed tune``, with the same name and help.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

from posembed.errors import ArgumentError
from posembed.settings import Count, Seed, Settings, Share, converted, option, settings_from

TRAINED = {
    "all": "all weights",
    "rows": "only the new rows of the position table",
    "table": "only the position table",
    "lora": "the new rows, and low-rank changes of the attention's matrices",
}
"""What can be trained, by the value of ``--train``."""

SHORTEST = 16  # tokens
LARGEST = 1e6
"""The largest learning rate and weight that can be given: beyond it, float32 overflows."""
Length: TypeAlias = Annotated[int, Ge(SHORTEST), Le(10**9)]
Rate: TypeAlias = Annotated[float, Gt(0), Le(LARGEST)]
DATA, TRAINING, LOSS = "Data", "Training", "Loss of sentence encoders"
MINUTES = 15.0


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """The settings of a fine-tuning. Raises ArgumentError for a value that cannot be used."""

    length: Length = option("The new length in tokens, including special tokens.")
    train: Literal["all", "rows", "table", "lora"] = option(
        f"What is trained: {'; '.join(f'{name} ({what})' for name, what in TRAINED.items())}.", default="all"
    )
    method: str | None = option(
        "How the new rows are first computed, as for posembed resize. Default: for language models, tile or stretch, "
        "whichever reads training windows better before the fine-tuning; otherwise that of posembed resize.",
        default=None,
    )
    minutes: Rate | None = option(
        "Minutes for the whole command: all fine-tunings and the measurement, as estimated before they start. They are "
        f"turned into a number of steps once. Default: {MINUTES:.0f}, or as many as --steps takes.",
        TRAINING,
        default=None,
    )
    steps: Count | None = option("Steps of fine-tuning, instead of minutes.", TRAINING, default=None)
    batch: Count = option("Windows of the new length per step.", TRAINING, default=4)
    learning_rate: Rate = option("Peak learning rate; it then decays as a cosine.", TRAINING, default=5e-5)
    rows_learning_rate: Rate = option("Peak learning rate of new rows and of lora.", TRAINING, default=1e-3)
    warmup: Share = option("Share of the steps in which the learning rate rises.", TRAINING, default=0.1)
    clip: Rate = option("Maximum gradient norm; larger gradients are scaled down.", TRAINING, default=1.0)
    rank: Annotated[int, Ge(1), Le(1024)] = option("Rank of the changes that lora trains.", TRAINING, default=8)
    checkpointing: bool = option(
        "Compute activations again in the backward pass: less memory, more time.", TRAINING, default=False
    )
    seeds: Count = option("Number of fine-tunings, with different random numbers. OUT is the first.", default=1)
    seed: Seed = option("The first seed.", default=0)
    held_out: Share = option(
        "Share of the long documents that is not trained on, but measures the result.", DATA, default=0.2
    )
    query: Annotated[int, Ge(4), Le(10**9)] = option(
        "Tokens per query. Three queries are taken from each held-out document.", DATA, default=24
    )
    passage: Annotated[int, Ge(4), Le(10**9)] = option("Tokens per passage.", LOSS, default=48)
    temperature: Rate = option("Temperature of the softmax over passages.", LOSS, default=0.05)
    anchor: Annotated[float, Ge(0), Le(LARGEST)] = option(
        "Weight of 1 - cosine between new and original vectors of passages.", LOSS, default=20.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.minutes is not None:
            raise ArgumentError("minutes: expected either minutes or steps; got both")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TuneSettings:
        """Returns the settings with given values; None means the default. Raises ArgumentError for an unknown name."""
        rest = dict(given)
        if (size := rest.pop("image_size", None)) is not None:
            if rest.get("length") is not None:
                raise ArgumentError("image_size: expected either length or image_size; got both")
            rest["length"] = converted("image_size", size, Length)
        if rest.get("length") is None:
            raise ArgumentError(
                "length: expected the new length in tokens, such as 2048 (for an image model, image_size in pixels); "
                "got none"
            )
        return settings_from(cls, rest)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Returns the settings in which another fine-tuning differs, such as "batch (4, now 8)"."""
        plain = json.loads(json.dumps(self.to_dict()))
        return [f"{name} ({other.get(name)}, now {now})" for name, now in plain.items() if other.get(name) != now]


def named_size(given: Mapping[str, Any]) -> str | None:
    """Returns the argument that gives the new size, "length" or "image_size"."""
    return next((name for name in ("image_size", "length") if given.get(name) is not None), None)
