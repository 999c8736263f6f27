"""The settings of one training run: everything that decides its outcome."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from posembed.errors import ArgumentError
from posembed.settings import Amount, Count, NotNegative, Positive, Settings, Share, option

MODEL, TRAINING = "Model", "Training"
DRAWS = 2
"""The version of the random draws, which results and checkpoints record. Runs with other draws are not continued: in
version 1, all seeds of a question on text or images drew the same batches."""


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(Settings):
    """The settings of one run, for any task. Runs with equal specs give the same numbers.

    A field with ``compare=False`` is only a label, such as a path; a hash of the file's content is compared instead.
    A question's subclass adds fields. It sets ``COMPARED``, the field in which its runs differ, and ``VARIED``, a
    second such field, if any.
    """

    COMPARED: ClassVar[str] = "encoding"
    """The field in which the runs of one folder differ, besides the seed."""
    VARIED: ClassVar[str | None] = None
    """A second field in which the runs differ, such as the amount of training text: every name runs with each value.
    The values are strings, like the names."""

    question: str
    encoding: str = ""
    seed: int = 0
    train_length: int
    """Tokens per training sequence."""
    layers: Count = option("Number of layers.", MODEL)
    width: Count = option("Width of the model.", MODEL)
    heads: Count = option("Number of attention heads.", MODEL)
    window: int = 0
    """The causal window of the encodings that need one, and of names that end in "+window"."""
    ring: int = 0
    """Rows of the rolling table."""
    rope_factors: tuple[float, ...] = ()
    """The factors of rope-longrope past the training length, one per pair of components of a head."""
    steps: Count = option("Training steps.", TRAINING)
    batch: Count = option("Sequences per step, over all processes.", TRAINING)
    learning_rate: Positive = option("Peak learning rate; it then decays as a cosine.", TRAINING)
    warmup: Amount = option("Steps of linear warm-up.", TRAINING)
    weight_decay: NotNegative = option("Weight decay of the matrices.", TRAINING)
    dropout: Share = option("Dropout after each sublayer and each position sum.", TRAINING)
    clip: Positive = option("Maximum gradient norm; larger gradients are scaled down.", TRAINING)
    precision: str = option("no (float32), bf16 or fp16.", TRAINING)

    @property
    def longest(self) -> int:
        """The longest input in training or testing, in tokens. A table that covers all positions has this many rows."""
        return self.train_length

    @property
    def compared(self) -> str:
        """The name under which this run is compared, such as its encoding."""
        return str(getattr(self, self.COMPARED))

    @property
    def varied(self) -> str:
        """The value of ``VARIED``; empty without such a field."""
        return "" if self.VARIED is None else str(getattr(self, self.VARIED))

    @property
    def varied_in_words(self) -> str:
        return self.varied

    @property
    def case(self) -> str:
        """What distinguishes the run from others with its compared name: "seed 0" or "8,192 tokens, seed 0"."""
        return f"{self.varied_in_words}{', ' if self.VARIED else ''}seed {self.seed}"

    @property
    def name(self) -> str:
        """The run's name within its folder, such as "rope, seed 0"."""
        return f"{self.compared}, {self.case}"

    def key(self) -> str:
        """Returns a short file name that is unique to this spec."""
        asked = {name: value for name, value in self._asked().items() if name not in self.labels()}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return f"{re.sub('[^a-z0-9]+', '-', self.name.lower())}-{digest[:10]}"

    def shared_settings(self) -> dict[str, Any]:
        """Returns the settings that all runs of a folder have in common."""
        return {
            name: value for name, value in self._asked().items() if name not in (self.COMPARED, self.VARIED, "seed")
        }

    @classmethod
    def labels(cls) -> set[str]:
        """Returns the names of the fields with ``compare=False``."""
        return {field.name for field in dataclasses.fields(cls) if not field.compare}

    def _asked(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in ((), None)}


SpecT = TypeVar("SpecT", bound=TrainingSpec)


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults, overridden by the given values that are not None. Limits a default warm-up to ``steps``."""
    given = {name: value for name, value in given.items() if value is not None}
    steps = given.get("steps", defaults["steps"])
    return {**defaults, "warmup": min(defaults["warmup"], max(steps, 0)), **given}


def require_divisible(width: int, heads: int) -> None:
    """Raises ArgumentError for a width that the heads do not divide."""
    if width % heads:
        raise ArgumentError(
            f"width {width} is not divisible by {heads} heads; try a width of {heads * max(width // heads, 1)}"
        )


def default_window(layers: int, train_length: int) -> int:
    """Returns the largest power of two w for which n layers see n (w - 1) + 1 <= ``train_length`` tokens. With a larger
    window, a token past the training length would depend on more tokens than any token in training."""
    window = 1
    while layers * (2 * window - 1) + 1 <= train_length:
        window *= 2
    return window


def with_default_window(values: dict[str, Any]) -> dict[str, Any]:
    """Adds the default window and ring if they are not given."""
    values.setdefault("window", default_window(values["layers"], values["train_length"]))
    values.setdefault("ring", values["window"])
    return values
