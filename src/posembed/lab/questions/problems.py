"""Which encoding solves problems larger than those it was trained on?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from posembed.lab.by_seed import BySeed
from posembed.lab.question import Loaded, Reading, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec, with_default_window
from posembed.lab.tasks.problem_texts import PROBLEMS, tokens_read
from posembed.settings import Ascending, Count, option
from posembed.statistics import Estimate

SOLVED = 0.95
"""A size is solved if the model answers at least this share of its problems, over all seeds, without a mistake."""

BySize: TypeAlias = dict[int, Estimate | None]
"""Estimates by problem size. None means that the encoding has no position at that size."""


@dataclass(frozen=True)
class Solved:
    """Shares of correct answers by problem size. None means that the encoding has no position at that size."""

    exact_match: dict[int, float | None]
    """The share of problems whose whole answer is correct."""
    token_accuracy: dict[int, float | None]
    """The share of correct tokens in the answers, each predicted from the correct tokens before it."""


@dataclass(frozen=True, kw_only=True)
class ProblemSpec(TrainingSpec):
    Measured = Solved
    SEEDS_DIFFER_SINCE = 1

    problem: str
    train_size: Count = option("Size of the largest training problem; sizes are drawn evenly from 1 to it.", MODEL)
    test_sizes: Ascending[Count] = option("Sizes to measure at, separated by commas.", MODEL)
    test_problems: Count = option("Problems per size to measure on.", TRAINING)
    window: Count = option("Causal window of the encodings that use one.", MODEL)
    ring: Count = option("Rows of the rolling table; at least the window.", MODEL)

    @property
    def longest(self) -> int:
        return tokens_read(self.problem, max(self.train_size, *self.test_sizes))

    def shortened(self, tokens: int) -> ProblemSpec:
        if self.train_length <= tokens:
            return self
        size = max(self.train_size * tokens // self.train_length, 1)
        return dataclasses.replace(self, train_size=size, train_length=tokens_read(self.problem, size))


@dataclass(frozen=True, kw_only=True)
class ProblemRow(Row):
    exact_match: BySize
    token_accuracy: BySize
    solves: int | None
    """The largest size such that it and all smaller tested sizes are solved; None if the smallest is not."""
    solves_by_seed: tuple[int | None, ...]
    """The same for each seed alone, in the order of ``seeds``."""


@dataclass(frozen=True, kw_only=True)
class ProblemSummary(Summary):
    problem: str
    unit: str
    train_size: int
    test_sizes: tuple[int, ...]
    test_problems: int
    rows: tuple[ProblemRow, ...]


class Problem(TrainedQuestion[ProblemSpec, Solved, ProblemSummary]):
    """The question about one problem of PROBLEMS."""

    page = "problems"
    group = "tasks"
    Spec = ProblemSpec
    ReadingType = Reading

    def __init__(self, name: str) -> None:
        self.name = name
        self.asks = f"Which encoding can {PROBLEMS[name].line}, past the sizes it was trained on?"
        self.usual = ("learned", "sinusoidal", "rope", "alibi", *PROBLEMS[name].ids)
        ids = " and ".join(PROBLEMS[name].ids)
        self.names_help = f"Encodings to compare, separated by commas{f'; {ids} ids apply too' if ids else ''}."
        # To find what followed the same characters, a model needs two layers: in the first, each token reads its
        # neighbour. Each head must distinguish all rows of the table, so half as many heads need half as many steps.
        self.presets = presets_of("problems", name)

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.problems import check_encoding

        check_encoding(name, self.name)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.problems import ProblemSolving

        chosen["train_length"] = tokens_read(self.name, chosen["train_size"])
        with_default_window(chosen)
        return ProblemSolving(self.name), {"problem": self.name}

    def summary(self, runs: Sequence[BySeed[Solved]], spec: ProblemSpec, reading: Reading) -> ProblemSummary:
        sizes, rows = spec.test_sizes, []
        for each in runs:
            exact = each.means(lambda m: m.exact_match, sizes)
            row = ProblemRow(
                **each.row,
                exact_match=exact,
                token_accuracy=each.means(lambda m: m.token_accuracy, sizes),
                solves=solves({size: None if share is None else share.value for size, share in exact.items()}),
                solves_by_seed=tuple(solves(measured.exact_match) for measured in each.measured.values()),
            )
            rows.append(row)
        return ProblemSummary(
            problem=spec.problem,
            unit=PROBLEMS[spec.problem].unit,
            train_size=spec.train_size,
            test_sizes=sizes,
            test_problems=spec.test_problems,
            rows=tuple(rows),
        )


def solves(exact_match: dict[int, float | None]) -> int | None:
    """Returns the largest size such that it and all smaller sizes are solved; None if the smallest is not solved."""
    largest = None
    for size, share in sorted(exact_match.items()):
        if share is None or share <= SOLVED - 1e-9:  # rounding in the mean must not decide
            break
        largest = size
    return largest
