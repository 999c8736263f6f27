"""Means over runs or texts with their 95 % intervals, and paired differences: Student's t, two-sided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval, which is None for a single value: one value tells nothing of the spread."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    def exp(self) -> Estimate:
        """A mean loss as a perplexity, a difference of losses as a ratio of perplexities; the ends go along."""
        low, high = (None if end is None else safe_exp(end) for end in (self.low, self.high))
        return Estimate(safe_exp(self.mean), low, high, tuple(safe_exp(value) for value in self.values))

    def tells_from(self, value: float) -> bool:
        """Whether the interval leaves ``value`` out: a difference can be told from 0, a ratio from 1."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def safe_exp(value: float) -> float:
    """exp, infinite where a float ends."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values and its 95 % interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None, tuple(values))
    from scipy.stats import t  # half a second to import

    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half, tuple(values))


def shares(totals: Sequence[float], counts: Sequence[float]) -> tuple[float, ...]:
    """A value for each text, whose mean is sum(totals) / sum(counts), and whose spread is that of this ratio.

    Where all counts are equal, these are the texts' own ratios; else the ratio's linear part (Cochran 1977, 6.4),
    so that ``estimate`` and differences of them hold for both.
    """
    ratio = math.fsum(totals) / math.fsum(counts)
    mean_count = math.fsum(counts) / len(counts)
    return tuple(ratio + (total - ratio * count) / mean_count for total, count in zip(totals, counts, strict=True))


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """ours - theirs by seed, over the seeds that both have; None where they share none."""
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([ours[seed] - theirs[seed] for seed in shared]) if shared else None
