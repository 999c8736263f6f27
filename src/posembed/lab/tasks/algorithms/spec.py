"""What decides a run on an algorithmic problem, and settings that go together for each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

from posembed.errors import ArgumentError
from posembed.lab.presets import default_window, merged, require_trainable
from posembed.lab.runs.spec import TrainingSpec
from posembed.lab.tasks.algorithms.problems import PROBLEMS, Write, addition_written_forwards


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec(TrainingSpec):
    QUESTION: ClassVar[str] = "algorithms"

    problem: str
    train_size: int
    """Of the longest problem trained on; sizes are drawn evenly from 1 up to it."""
    test_sizes: tuple[int, ...]
    """Ascending."""
    test_problems: int
    """Of each size."""

    @property
    def longest(self) -> int:
        return tokens_fed(self.problem, max(self.train_size, *self.test_sizes))


COMMON: dict[str, Any] = {
    "layers": 2,  # what stood after the same characters before is found by tokens that know their neighbour
    "width": 128,
    "heads": 2,  # a head must tell apart as many rows as the table has: half the heads learned in half the steps
    "dropout": 0.0,
    "steps": 4000,
    "batch": 32,
    "learning_rate": 3e-3,
    "warmup": 100,
    "weight_decay": 0.01,
    "clip": 1.0,
    "precision": "no",
    "train_size": 20,
    "test_sizes": (10, 20, 21, 25, 30, 40),
    "test_problems": 200,
}

PRESETS: dict[str, dict[str, Any]] = {
    "copy": {},
    "reverse": {},
    "addition": {"layers": 1, "train_size": 10, "test_sizes": (5, 10, 11, 12, 15, 20, 25, 30)},
    "sorting": {},
    "parity": {},
    "passkey": {"train_size": 64, "test_sizes": (32, 64, 128, 256, 512), "steps": 2000},
}


def settings(problem: str, **overrides: Any) -> AlgorithmSpec:
    """An AlgorithmSpec without encoding and seed. Overrides that are None leave the problem's own value.

    Raises ArgumentError for a problem that is not known, or values that no run can have.
    """
    require_known(problem)
    chosen = merged(COMMON | PRESETS[problem], overrides)
    chosen["test_sizes"] = tuple(sorted(set(chosen["test_sizes"])))
    require_trainable(chosen, "train_size", "layers", "width", "heads", "steps", "batch", "test_problems")
    if not chosen["test_sizes"] or chosen["test_sizes"][0] < 1:
        raise ArgumentError(
            f"test sizes must be 1 or more, in {PROBLEMS[problem].unit}; "
            f"got {', '.join(map(str, chosen['test_sizes'])) or 'none'}"
        )
    length = tokens_fed(problem, chosen["train_size"])
    chosen.setdefault("window", default_window(chosen["layers"], length))
    chosen.setdefault("ring", chosen["window"])
    return AlgorithmSpec(encoding="", seed=0, problem=problem, train_length=length, **chosen)


def require_known(problem: str) -> None:
    if problem not in PROBLEMS:
        raise ArgumentError(f"unknown problem {problem!r}; known are {', '.join(PROBLEMS)}")


def tokens_fed(problem: str, size: int) -> int:
    """How many tokens a model reads to write the last of the answer: all but that one."""
    return len("".join(PROBLEMS[problem].write(size, random.Random(0)))) - 1


def written_for(spec: AlgorithmSpec) -> Write:
    """How the problem is put to an encoding: the same for all, but for the order in which a paper has operands."""
    if spec.problem == "addition" and spec.encoding == "coupled":
        return addition_written_forwards
    return PROBLEMS[spec.problem].write
