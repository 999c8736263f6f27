"""Means over runs or texts with their 95% intervals, and paired differences (Student's t, two-sided)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval. A single value has no spread, so its interval is None."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    def exp(self) -> Estimate:
        """Turns a mean loss into a perplexity, or a difference of losses into a ratio, with its interval."""
        low, high = (None if end is None else safe_exp(end) for end in (self.low, self.high))
        return Estimate(safe_exp(self.mean), low, high, tuple(safe_exp(value) for value in self.values))

    def tells_from(self, value: float) -> bool:
        """Returns whether the interval excludes ``value``: 0 to test a difference, 1 to test a ratio."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def safe_exp(value: float) -> float:
    """Returns exp(value), or infinity on overflow."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of independent values with its 95% interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None, tuple(values))
    from scipy.stats import t  # takes half a second

    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half, tuple(values))


def shares(totals: Sequence[float], counts: Sequence[float]) -> tuple[float, ...]:
    """Returns one value per text, with the mean sum(totals) / sum(counts) and the spread of this ratio.

    With equal counts these are the texts' own ratios. Otherwise they are the ratio's linear part (Cochran 1977,
    6.4), so that ``estimate`` and differences work for both.
    """
    ratio = math.fsum(totals) / math.fsum(counts)
    mean_count = math.fsum(counts) / len(counts)
    return tuple(ratio + (total - ratio * count) / mean_count for total, count in zip(totals, counts, strict=True))


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Estimates ours - theirs from the differences at shared seeds; None if no seed is shared."""
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([ours[seed] - theirs[seed] for seed in shared]) if shared else None
