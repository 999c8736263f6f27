"""The settings of a fine-tuning: everything that decides its result, except the checkpoint and the texts.

A field made by ``option`` is also an option of ``posembed tune``, with the same name and help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Le

from posembed.errors import ArgumentError
from posembed.evaluation.settings import KINDS, MODEL_TYPE, SHORTEST, Kind, Split
from posembed.settings import Count, Part, Seed, Settings, Share, option, settings_from, take_parts

TRAINED = {
    "all": "all weights",
    "rows": "only the new rows of the position table",
    "table": "only the position table",
    "lora": "the new rows, and low-rank changes of the attention's matrices",
}
"""What can be trained, by the value of ``--train``."""

LARGEST = 1e6
"""The largest learning rate and loss weight that can be given: beyond this, float32 overflows."""
Length: TypeAlias = Annotated[int, Ge(SHORTEST), Le(10**9)]
Rate: TypeAlias = Annotated[float, Gt(0), Le(LARGEST)]
DATA, TRAINING, LOSS = "Data", "Training", "Loss of sentence encoders"
MINUTES = 15.0


PartT = TypeVar("PartT", bound=Part)


@dataclass(frozen=True, kw_only=True)
class Sources(Settings):
    """The data besides the text, and how the model is run."""

    retrieval: Path | None = option(
        "A folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv). Its queries measure the result, instead "
        "of passages of held-out documents. For sentence encoders.",
        DATA,
        default=None,
    )
    images: Path | None = option(
        "A folder of large images, for an image model. They need no labels.", DATA, default=None
    )
    device: str | None = option("The device that runs the models. Default: an accelerator if available.", default=None)
    model_type: str | None = option(MODEL_TYPE, default=None)


@dataclass(frozen=True, kw_only=True)
class TextSize(Part):
    """The new length of a model of texts."""

    belongs: ClassVar[str] = "models of texts"
    length: Length = option("The new length in tokens, including special tokens.")


@dataclass(frozen=True, kw_only=True)
class ImageSize(Part):
    """The new size of an image model."""

    belongs: ClassVar[str] = "image models"
    image_size: Length = option("The new side in pixels.", DATA)


@dataclass(frozen=True, kw_only=True)
class Existing(Part):
    """How existing weights are trained."""

    belongs: ClassVar[str] = "--train all and --train table"
    learning_rate: Rate = option("Peak learning rate; it then decays as a cosine.", TRAINING, default=5e-5)


@dataclass(frozen=True, kw_only=True)
class LowRank(Part):
    """Low-rank changes of matrices."""

    belongs: ClassVar[str] = "--train lora"
    rank: Annotated[int, Ge(1), Le(1024)] = option("Rank of the changes that lora trains.", TRAINING, default=8)


@dataclass(frozen=True, kw_only=True)
class HeldOut(Part):
    """The documents or images that measure the result."""

    belongs: ClassVar[str] = "data without --retrieval, whose queries measure the result"
    held_out: Share = option(
        "Share of the long documents that is not trained on, but measures the result.", DATA, default=0.2
    )


@dataclass(frozen=True, kw_only=True)
class Queries(Part):
    """The queries that are made of held-out documents."""

    belongs: ClassVar[str] = "sentence encoders without --retrieval"
    query: Annotated[int, Ge(4), Le(10**9)] = option(
        "Tokens per query. Three queries are taken from each held-out document.", DATA, default=24
    )


@dataclass(frozen=True, kw_only=True)
class PassageLoss(Part):
    """The loss of sentence encoders."""

    belongs: ClassVar[str] = "sentence encoders"
    passage: Annotated[int, Ge(4), Le(10**9)] = option("Tokens per passage.", LOSS, default=48)
    temperature: Rate = option("Temperature of the softmax over passages.", LOSS, default=0.05)
    anchor: Annotated[float, Ge(0), Le(LARGEST)] = option(
        "Weight of 1 - cosine between new and original vectors of passages.", LOSS, default=20.0
    )


PARTS = (TextSize, ImageSize, Existing, LowRank, HeldOut, Queries, PassageLoss, Split)


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """The settings of a fine-tuning. Raises ArgumentError for a value that cannot be used.

    length: the new length in tokens, or the new side in pixels. parts: the settings that only this kind of model or of
    training has.
    """

    length: Length
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
    rows_learning_rate: Rate = option("Peak learning rate of new rows and of lora.", TRAINING, default=1e-3)
    warmup: Share = option("Share of the steps in which the learning rate rises.", TRAINING, default=0.1)
    clip: Rate = option("Maximum gradient norm; larger gradients are scaled down.", TRAINING, default=1.0)
    checkpointing: bool = option(
        "Compute activations again in the backward pass: less memory, more time.", TRAINING, default=False
    )
    seeds: Count = option("Number of fine-tunings, with different random numbers. OUT is the first.", default=1)
    seed: Seed = option("The first seed.", default=0)
    parts: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.minutes is not None:
            raise ArgumentError("minutes: expected either minutes or steps; got both")

    @classmethod
    def of(cls, given: Mapping[str, Any], *, kind: Kind, searched: bool = False) -> TuneSettings:
        """Returns the settings of a kind of model; None means the default. Raises ArgumentError for an unknown name and
        for an option of another kind. searched: whether a collection is given."""
        left = {name: value for name, value in given.items() if value is not None}
        train, sentences, pictures = left.get("train", "all"), kind == "sentences", kind == "images"
        apply = {
            TextSize: not pictures,
            ImageSize: pictures,
            Existing: train in ("all", "table"),
            LowRank: train == "lora",
            HeldOut: not searched,
            Queries: sentences and not searched,
            PassageLoss: sentences,
            Split: searched,
        }
        because = f"this is {KINDS[kind]} with --train {train}{' and --retrieval' * searched}"
        size, *parts = take_parts(left, apply, because)
        (length,) = vars(size).values()
        return settings_from(cls, left, of=" of tune", length=length, parts=tuple(parts))

    def part(self, kind: type[PartT]) -> PartT:
        """Returns the settings of a part."""
        return next((each for each in self.parts if isinstance(each, kind)), None) or kind()

    def to_dict(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if name != "parts"}
        return own | {name: value for part in self.parts for name, value in vars(part).items()}


def folder_of(out: Path) -> Path:
    """Returns the folder that keeps what a fine-tuning has finished."""
    return Path(f"{out}.tune")
