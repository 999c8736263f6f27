"""The settings of solving generated problems, and their metrics by problem size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.lab.tasks.problem_texts import tokens_read
from posembed.measure.metrics import Metric
from posembed.settings import Ascending, Count, option

EXACT, TOKENS, WRONG = metrics("answers", "wrong reads")


def wrong_reads(tail: str) -> Metric:
    """Returns the metric WRONG for the test distribution ``tail``; WRONG itself for the training distribution, ""."""
    if not tail:
        return WRONG
    says = f"The share of wrong answers on {tail} texts, which were not trained on."
    return dataclasses.replace(WRONG, name=f"{WRONG.name}, {tail} tail", says=says, told=True)


@dataclass(frozen=True, kw_only=True)
class SizedSpec(TrainingSpec):
    """The settings of a run on generated problems of several sizes."""

    problem: str
    train_size: Count = option(
        "Size of the largest training problem; sizes are drawn evenly from 1 to it (flip-flop, tracking: all are it).",
        MODEL,
    )
    test_sizes: Ascending[Count] = option("Sizes to measure at, separated by commas.", MODEL)


@dataclass(frozen=True, kw_only=True)
class ProblemSpec(SizedSpec):
    test_problems: Count = option("Problems per size to measure on.", TRAINING)
    window: Count = option("Causal window of the encodings that use one.", MODEL)
    ring: Count = option("Rows of the rolling table; at least the window.", MODEL)

    @property
    def longest(self) -> int:
        return tokens_read(self.problem, max(self.train_size, *self.test_sizes))
