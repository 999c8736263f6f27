"""The settings of a fine-tuning: everything that decides its result, except the checkpoint and the texts.

A field made by ``option`` is also an option of ``posembed tune``, with the same name and help.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.runs.spec import option, options, take_options

TRAINED = {
    "all": "all weights",
    "rows": "only the new rows of the position table",
    "table": "only the position table",
    "lora": "the new rows, and low-rank changes of the attention's matrices",
}
"""What can be trained, by the value of ``--train``."""

SHORTEST = 16  # tokens
LARGEST, MOST, MOST_RANK = 1e6, 10**9, 1024
"""The largest numbers, whole numbers and rank that can be given: beyond them, float32 overflows, or memory ends."""
DATA, TRAINING, LOSS = "Data", "Training", "Loss of sentence encoders"
MINUTES = 15.0


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """The settings of a fine-tuning. Raises ArgumentError for a value that cannot be used."""

    length: int = option("The new length in tokens, including special tokens.")
    train: str = option(
        f"What is trained: {'; '.join(f'{name} ({what})' for name, what in TRAINED.items())}.", default="all"
    )
    method: str | None = option(
        "How the new rows are first computed, as for posembed resize. Default: for language models, tile or stretch, "
        "whichever reads training windows better before the fine-tuning; otherwise that of posembed resize.",
        default=None,
    )
    minutes: float | None = option(
        "Minutes for the whole command: all fine-tunings and the measurement, as estimated before they start. They are "
        f"turned into a number of steps once. Default: {MINUTES:.0f}, or as many as --steps takes.",
        TRAINING,
        default=None,
    )
    steps: int | None = option("Steps of fine-tuning, instead of minutes.", TRAINING, default=None)
    batch: int = option("Windows of the new length per step.", TRAINING, default=4)
    learning_rate: float = option("Peak learning rate; it then decays as a cosine.", TRAINING, default=5e-5)
    rows_learning_rate: float = option("Peak learning rate of new rows and of lora.", TRAINING, default=1e-3)
    warmup: float = option("Share of the steps in which the learning rate rises.", TRAINING, default=0.1)
    clip: float = option("Maximum gradient norm; larger gradients are scaled down.", TRAINING, default=1.0)
    rank: int = option("Rank of the changes that lora trains.", TRAINING, default=8)
    checkpointing: bool = option(
        "Compute activations again in the backward pass: less memory, more time.", TRAINING, default=False
    )
    seeds: int = option("Number of fine-tunings, with different random numbers. OUT is the first.", default=1)
    seed: int = option("The first seed.", default=0)
    held_out: float = option(
        "Share of the long documents that is not trained on, but measures the result.", DATA, default=0.2
    )
    query: int = option("Tokens per query. Three queries are taken from each held-out document.", DATA, default=24)
    passage: int = option("Tokens per passage.", LOSS, default=48)
    temperature: float = option("Temperature of the softmax over passages.", LOSS, default=0.05)
    anchor: float = option("Weight of 1 - cosine between new and original vectors of passages.", LOSS, default=20.0)

    def __post_init__(self) -> None:
        whole = {"length": SHORTEST, "batch": 1, "rank": 1, "seeds": 1, "passage": 4, "query": 4, "steps": 1}
        for name, least in whole.items():
            value = getattr(self, name)
            most = MOST_RANK if name == "rank" else MOST
            holds = (type(value) is int and value >= least) or (name == "steps" and value is None)
            check(holds, name, f"a whole number of at least {least}", value)
            check(value is None or value <= most, name, f"a whole number of at most {most:,}", value)
        check(type(self.seed) is int and 0 <= self.seed < 2**31, "seed", "a whole number from 0 to 2^31 - 1", self.seed)
        check(self.train in TRAINED, "train", f"one of {', '.join(TRAINED)}", self.train)
        for name in ("learning_rate", "rows_learning_rate", "clip", "temperature", "minutes"):
            value = getattr(self, name)
            check(value is None or is_number(value, above=0.0), name, "a number above 0", value)
        check(is_number(self.anchor) and self.anchor >= 0, "anchor", "a number of at least 0", self.anchor)
        for name in ("learning_rate", "rows_learning_rate", "clip", "temperature", "minutes", "anchor"):
            value = getattr(self, name)
            check(value is None or value <= LARGEST, name, f"a number of at most {LARGEST:,.0f}", value)
        for name in ("held_out", "warmup"):
            value = getattr(self, name)
            check(is_number(value) and 0 <= value < 1, name, "a share from 0 to below 1", value)
        if self.steps is not None and self.minutes is not None:
            raise ArgumentError("minutes: expected either minutes or steps; got both")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TuneSettings:
        """Returns the settings with given values; None means the default. Raises ArgumentError for an unknown name."""
        rest = dict(given)
        if (size := rest.pop("image_size", None)) is not None:
            if rest.get("length") is not None:
                raise ArgumentError("image_size: expected either length or image_size; got both")
            holds = type(size) is int and size >= SHORTEST
            check(holds, "image_size", f"a whole number of at least {SHORTEST} pixels", size)
            check(size <= MOST, "image_size", f"a whole number of at most {MOST:,}", size)
            rest["length"] = size
        taken = take_options(cls, rest)
        if rest:
            raise unknown("setting", next(iter(rest)), options(cls))
        if "length" not in taken:
            raise ArgumentError(
                "length: expected the new length in tokens, such as 2048 (for an image model, image_size in pixels); "
                "got none"
            )
        return cls(**taken)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Returns the settings in which another fine-tuning differs, such as "batch (4, now 8)"."""
        plain = json.loads(json.dumps(self.to_dict()))
        return [f"{name} ({other.get(name)}, now {now})" for name, now in plain.items() if other.get(name) != now]


def named_size(given: Mapping[str, Any]) -> str | None:
    """Returns the argument that gives the new size, "length" or "image_size"."""
    return next((name for name in ("image_size", "length") if given.get(name) is not None), None)


def check(holds: bool, name: str, expected: str, given: object) -> None:
    if not holds:
        raise ArgumentError(f"{name}: expected {expected}; got {given!r}")


def is_number(value: Any, *, above: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and above < value < math.inf
