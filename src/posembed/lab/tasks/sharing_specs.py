"""The settings of rewriting with an encoder and a decoder, and what is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL, TRAINING
from posembed.lab.tasks.pairs import PROBLEMS
from posembed.lab.tasks.problems_specs import SizedSpec, Solved, by_size
from posembed.measure.frame import Value
from posembed.settings import Ascending, Count, option

ONE, TWO = "one-table", "two-tables"
WITHIN, LOSS_WITHIN, PAST, LOSS = metrics("sharing")
TABLES = (ONE, TWO, "encoder-table", "decoder-table")
"""Where the learned tables are: one for both sides, one for each side, or one on a single side."""
SAME_ON_BOTH = ("sinusoidal", "none", "rope", "alibi", "t5", "kerple-log", "kerple-power", "pope")
"""Encodings that encoders and decoders can use. Each side trains its own parameters of t5 and the two kerples."""


@dataclass(frozen=True)
class Rewritten(Solved):
    """Measurements on held-out pairs, by size. None means that a table has no row for some position."""

    loss: dict[int, float | None]
    """The mean loss in nats per token of the targets."""

    def values(self) -> Iterator[Value]:
        yield from super().values()
        yield from by_size({LOSS: self.loss})


@dataclass(frozen=True, kw_only=True)
class SharingSpec(SizedSpec):
    Measured = Rewritten

    problem: str = option(f"What is written: {', '.join(PROBLEMS)}.", MODEL)
    train_size: Count = option("Size of the largest training pair, in letters, dates or clauses.", MODEL)
    test_sizes: Ascending[Count] = option("Sizes to measure at, separated by commas.", MODEL)
    test_pairs: Count = option("Held-out pairs per size to measure on.", TRAINING)
    source_length: int
    """Tokens of the longest training source, with its end; the rows of the encoder's table."""
    target_length: int
    """Tokens that the decoder reads to write the longest training target; the rows of the decoder's table."""

    def lengths(self, size: int) -> dict[str, Any]:
        return lengths_of(self.problem, size)


def lengths_of(problem: str, size: int) -> dict[str, Any]:
    """Returns the lengths in tokens of the longest pair of this size, as fields of ``SharingSpec``."""
    source, target = (longest + 1 for longest in PROBLEMS[problem].longest(size))
    return {"source_length": source, "target_length": target, "train_length": source + target}


def mean_over(sizes: Sequence[int], values: Mapping[int, float | None]) -> float | None:
    """Returns the mean of the values at these sizes; None if there are none or one of them is None."""
    known = [values[size] for size in sizes]
    if not known or None in known:
        return None
    return math.fsum(value for value in known if value is not None) / len(known)
