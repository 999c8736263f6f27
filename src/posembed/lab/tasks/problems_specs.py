"""The settings of generated problems, for a decoder or for an encoder and a decoder, and their metrics by size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.lab.metrics import Measured, by_x, metrics
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.lab.tasks.pairs import PROBLEMS
from posembed.lab.tasks.problem_texts import tokens_read
from posembed.measure.metrics import Metric
from posembed.settings import Ascending, Count, option

EXACT, TOKENS, WRONG = metrics("answers", "wrong reads")
WITHIN, LOSS_WITHIN, PAST, LOSS = metrics("sharing", "loss of targets")
ONE, TWO = "one-table", "two-tables"
TABLES = (ONE, TWO, "encoder-table", "decoder-table")
"""Where the learned tables are: one for both sides, one for each side, or one on a single side."""
SAME_ON_BOTH = ("sinusoidal", "none", "rope", "alibi", "t5", "kerple-log", "kerple-power", "pope")
"""Encodings that encoders and decoders can use. Each side trains its own parameters of t5 and the two kerples."""


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


@dataclass(frozen=True, kw_only=True)
class SharingSpec(SizedSpec):
    problem: str = option(f"What is written: {', '.join(PROBLEMS)}.", MODEL)
    train_size: Count = option("Size of the largest training pair, in letters, dates or clauses.", MODEL)
    test_pairs: Count = option("Held-out pairs per size to measure on.", TRAINING)
    source_length: int
    """Tokens of the longest training source, with its end; the rows of the encoder's table."""
    target_length: int
    """Tokens that the decoder reads to write the longest training target; the rows of the decoder's table."""


def lengths_of(problem: str, size: int) -> dict[str, Any]:
    """Returns the lengths in tokens of the longest pair of this size, as fields of ``SharingSpec``."""
    source, target = (longest + 1 for longest in PROBLEMS[problem].longest(size))
    return {"source_length": source, "target_length": target, "train_length": source + target}


def measured_pairs(
    spec: SharingSpec,
    exact: Mapping[int, float | None],
    tokens: Mapping[int, float | None],
    loss: Mapping[int, float | None],
) -> Measured:
    """Returns what was measured by size, with the means over the sizes of training and over larger ones. None means
    that a table has no row for some position. loss: in nats per token of the targets."""
    inside = [size for size in spec.test_sizes if size <= spec.train_size]
    past = [size for size in spec.test_sizes if size > spec.train_size]
    over = {WITHIN: (inside, exact), PAST: (past, exact), LOSS_WITHIN: (inside, loss)}
    means = {metric: {None: mean_over(sizes, values)} for metric, (sizes, values) in over.items() if sizes}
    return Measured((*by_x(means), *by_x({EXACT: exact, TOKENS: tokens, LOSS: loss})))


def mean_over(sizes: Sequence[int], values: Mapping[int, float | None]) -> float | None:
    """Returns the mean of the values at these sizes; None if one of them is None."""
    known = [value for size in sizes if (value := values[size]) is not None]
    return math.fsum(known) / len(known) if len(known) == len(sizes) else None
