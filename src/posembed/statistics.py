"""Means, medians and paired differences with their 95% intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
INTERVAL = f"{CONFIDENCE:.0%} interval"
"""The name of every interval in text: "95% interval"."""

Side = Literal["below", "above", "both"]


@dataclass(frozen=True)
class Estimate:
    """A mean, a median or a difference, with its two-sided 95% interval.

    low, high: the ends of the interval; None if there are too few values for an interval.
    values: the observations behind the estimate; empty if only the interval is known.
    """

    value: float
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()

    def side_of(self, value: float) -> Side | None:
        """Returns on which side of ``value`` the interval lies; None if there is no interval.

        With ``value`` 0 for a difference or 1 for a ratio, "below" and "above" mean a significant result. The result is
        "both" if the interval contains ``value``.

        >>> Estimate(0.3, low=0.1, high=0.5).side_of(0)
        'above'
        """
        if self.low is None or self.high is None or math.isnan(self.low) or math.isnan(self.high):
            return None
        return "above" if value < self.low else "below" if value > self.high else "both"

    def within(self, low: float, high: float) -> Estimate:
        """Limits the interval to possible values."""
        if self.low is None or self.high is None:
            return self
        return dataclasses.replace(self, low=max(self.low, low), high=min(self.high, high))

    def exp(self) -> Estimate:
        """Turns a mean loss into a perplexity, or a difference of losses into a ratio, with its interval."""
        low, high = (None if end is None else safe_exp(end) for end in (self.low, self.high))
        return Estimate(safe_exp(self.value), low, high, tuple(safe_exp(value) for value in self.values))


def safe_exp(value: float) -> float:
    """Returns exp(value), or infinity on overflow."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def estimate(values: Sequence[float]) -> Estimate:
    """Estimates the mean of independent values, with Student's t interval. A single value has no interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None, tuple(values))
    from scipy.special import stdtrit  # the quantiles of scipy.stats.t, which takes half a second to import

    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half, tuple(values))


def jackknife(groups: Sequence[int], statistic: Callable[[Sequence[int]], float | None]) -> Estimate | None:
    """Estimates a statistic of several groups, with an interval from leaving out one group at a time (Tukey 1958).

    Use it for values that share groups, such as the similarities of all pairs of runs, in which each run occurs several
    times. The interval is Student's t. On average, its variance is too large rather than too small (Efron and Stein
    1981). A group without values makes the interval too narrow, because leaving that group out changes nothing.

    groups: the groups, such as the seeds of the runs. statistic: computes the value from some of the groups, or returns
    None if they are too few. Without enough groups to leave one out, there is no interval.
    """
    value, n = statistic(groups), len(groups)
    without = [statistic([each for each in groups if each != left_out]) for left_out in groups]
    known = [each for each in without if each is not None]
    if value is None or n < 2 or len(known) < n:
        return None if value is None else Estimate(value)
    found = estimate([n * value - (n - 1) * each for each in known])
    return Estimate(value, found.low, found.high)


def estimate_median(values: Sequence[float]) -> Estimate:
    """Estimates the median, with an interval from order statistics (the sign test) that holds for any distribution.

    The interval runs from the k-th smallest to the k-th largest value. k is as large as possible, while the probability
    that the interval misses the median is at most 5%. Five values or fewer have no interval.
    """
    ordered, n = sorted(values), len(values)
    cut, tail = -1, 0.0
    while tail + math.comb(n, cut + 1) / 2**n <= (1 - CONFIDENCE) / 2:
        cut += 1
        tail += math.comb(n, cut) / 2**n
    low, high = (None, None) if cut < 0 else (ordered[cut], ordered[n - 1 - cut])
    return Estimate(statistics.median(ordered), low, high, tuple(values))


def shares(totals: Sequence[float], counts: Sequence[float]) -> tuple[float, ...]:
    """Returns one value per text. Their mean is sum(totals) / sum(counts), and their spread gives the mean's interval.

    With equal counts, each value is total / count. Otherwise the values come from a linear approximation of the ratio
    (Cochran 1977, 6.4). ``estimate`` and paired differences work in both cases.
    """
    ratio = math.fsum(totals) / math.fsum(counts)
    mean_count = math.fsum(counts) / len(counts)
    return tuple(ratio + (total - ratio * count) / mean_count for total, count in zip(totals, counts, strict=True))


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Estimates the mean of ours - theirs from the differences at shared seeds; None if no seed is shared."""
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([ours[seed] - theirs[seed] for seed in shared]) if shared else None
