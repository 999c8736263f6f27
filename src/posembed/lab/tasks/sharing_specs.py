"""The settings of rewriting with an encoder and a decoder, and what is measured of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.lab.metrics import Measured, by_x, metrics
from posembed.lab.runs.spec import MODEL, TRAINING
from posembed.lab.tasks.pairs import PROBLEMS
from posembed.lab.tasks.problems_specs import EXACT, TOKENS, SizedSpec
from posembed.settings import Count, option

ONE, TWO = "one-table", "two-tables"
WITHIN, LOSS_WITHIN, PAST, LOSS = metrics("sharing")
TABLES = (ONE, TWO, "encoder-table", "decoder-table")
"""Where the learned tables are: one for both sides, one for each side, or one on a single side."""
SAME_ON_BOTH = ("sinusoidal", "none", "rope", "alibi", "t5", "kerple-log", "kerple-power", "pope")
"""Encodings that encoders and decoders can use. Each side trains its own parameters of t5 and the two kerples."""


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
