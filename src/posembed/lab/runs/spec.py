"""What a run is asked: everything that decides its outcome."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar


def option(help: str, panel: str | None = None, **field: Any) -> Any:
    """A dataclass field that a user may set: ``help`` says what it is, ``panel`` groups it in ``--help``."""
    return dataclasses.field(metadata={"help": help, "panel": panel}, **field)


def options(settings: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that were made by ``option``, by name."""
    return {field.name: field for field in dataclasses.fields(settings) if "help" in field.metadata}


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Of one training of the lab's model, whatever it learns; two equal specs give the same numbers.

    A field that is not compared is the user's name of something, such as a path; a hash of what it holds decides.
    Each task adds its own fields, and says which question its runs answer and what that question compares.
    """

    QUESTION: ClassVar[str]
    COMPARED: ClassVar[tuple[str, ...]] = ("encoding", "seed")
    """What may differ between runs that share a folder."""

    encoding: str
    seed: int
    train_length: int
    """In tokens."""
    layers: int
    width: int
    heads: int
    window: int
    """Of the encodings that need one, and of those named with "+window"."""
    ring: int
    """Rows of the rolling table."""
    rope_factors: tuple[float, ...] = ()
    """Of rope-longrope beyond the training length, one for each pair of a head."""
    dropout: float
    steps: int
    batch: int
    learning_rate: float
    warmup: int
    weight_decay: float
    clip: float
    precision: str

    @property
    def longest(self) -> int:
        """The longest input that training or testing shows: how long a table must be that is to hold them all."""
        return self.train_length

    @property
    def name(self) -> str:
        """What tells this run from the others of its folder, as people read it: "rope, seed 0"."""
        others = [str(getattr(self, field)) for field in self.COMPARED if field != "seed"]
        return ", ".join([*others, f"seed {self.seed}"])

    def key(self) -> str:
        """A short name, safe in a file system, that no other spec has."""
        asked = {"question": self.QUESTION, **self._asked()}
        asked = {name: value for name, value in asked.items() if name not in self.labels()}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return f"{re.sub('[^a-z0-9]+', '-', self.name.lower())}-{digest[:10]}"

    def shared_settings(self) -> dict[str, Any]:
        """What all runs of a folder have in common."""
        return {name: value for name, value in self._asked().items() if name not in self.COMPARED}

    @classmethod
    def labels(cls) -> set[str]:
        """The fields that are not compared."""
        return {field.name for field in dataclasses.fields(cls) if not field.compare}

    def _asked(self) -> dict[str, Any]:
        """The fields, without those that are empty: they ask for nothing."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != ()}
