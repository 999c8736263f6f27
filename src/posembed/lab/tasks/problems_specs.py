"""The settings of solving generated problems, and what is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.lab.tasks.problem_texts import tokens_read
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric
from posembed.settings import Ascending, Count, option

EXACT = Metric("exact match", "The share of problems answered without a mistake.", better="high", kind="share")
TOKENS = Metric(
    "token accuracy",
    "The share of tokens of the answers predicted correctly, each from the correct tokens before it.",
    better="high",
    kind="share",
)


@dataclass(frozen=True)
class Solved:
    """Shares of correct answers by problem size. None means that the encoding has no position at that size."""

    exact_match: dict[int, float | None]
    """The share of problems whose whole answer is correct."""
    token_accuracy: dict[int, float | None]
    """The share of correct tokens in the answers, each predicted from the correct tokens before it."""

    def values(self) -> Iterator[Value]:
        for metric, shares in ((EXACT, self.exact_match), (TOKENS, self.token_accuracy)):
            yield from (Value(metric.name, share, size) for size, share in shares.items())


@dataclass(frozen=True, kw_only=True)
class ProblemSpec(TrainingSpec):
    Measured = Solved

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
