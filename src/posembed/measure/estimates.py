"""Estimates from a frame: means over seeds, and comparisons with a reference and with an own base, with a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from posembed.measure.frame import ONLY, Frame, Run
from posembed.measure.metrics import Metric, Verdict
from posembed.statistics import Estimate, estimate, paired_difference, shares

FEWEST_ALIKE = 6
"""The minimum number of items or seeds for an interval if all their differences are equal. By chance, n signs are equal
with probability 2^(1 - n), which is below 5% from n = 6 on."""
SAME = {"rel_tol": 1e-12, "abs_tol": 1e-12}
"""How far apart the rounding of sums can bring two equal values."""
X = int | None


@dataclass(frozen=True)
class Comparison:
    """A difference or a ratio, paired by seed.

    over_seeds: its interval reflects the variation between seeds. over_items: the same mean; its interval reflects the
    variation between held-out items. None if nothing was measured by item. It is significant if every known kind of
    interval excludes ``metric.same``.
    """

    metric: Metric
    over_seeds: Estimate
    over_items: Estimate | None = None

    @property
    def value(self) -> float:
        return self.over_seeds.value

    @property
    def verdict(self) -> Verdict:
        """Whether the values are better or worse than the reference's."""
        kinds = [self.over_seeds, *([self.over_items] if self.over_items else [])]
        sides = {each.side_of(self.metric.same) for each in kinds}
        if len(sides) == 1:
            return self.metric.verdict(sides.pop())
        return "unknown" if None in sides else "not significant"

    @property
    def width(self) -> float:
        """The width of the wider interval; 0 if none is known."""
        kinds = [self.over_seeds, *([self.over_items] if self.over_items else [])]
        return max(0.0 if each.low is None or each.high is None else each.high - each.low for each in kinds)


class Estimates:
    """Estimates of every metric for every name, over seeds.

    Args:
        frame: the values of the runs.
        names: the compared names, in order; names without a successful run too.
        reference: the name that the others are compared with; None without one.
    """

    def __init__(self, frame: Frame, names: Sequence[str], reference: str | None = None) -> None:
        self.frame, self.names, self.reference = frame, tuple(names), reference
        self.runs = cache(frame.of_name)

    def mean(self, metric: Metric, name: str, x: X = None) -> Estimate | None:
        """Estimates the mean over seeds; None if a run has no value there, or if there is no run."""
        values = self.by_seed(metric, name, x)
        measured = sum((metric.name, x) in run.found for run in self.runs(name).values())
        found = estimate(list(values.values())) if values and len(values) == measured else None
        return found and (found.exp() if metric.kind == "log" else within(found, 0.0, 1.0, metric))

    def versus(self, metric: Metric, name: str, x: X = None) -> Comparison | None:
        """Compares a name with the reference; None for the reference itself, and if they share no seed."""
        if self.reference is None or name == self.reference:
            return None
        ours, theirs = self.runs(name), self.runs(self.reference)
        return self._compared(metric, ours, x, theirs, x)

    def against(self, metric: Metric, name: str, x: X, base: X) -> Comparison | None:
        """Compares the values at x with the same name's values at ``base``."""
        own = self.runs(name)
        return self._compared(metric, own, x, own, base)

    def change(self, metric: Metric, name: str, x: X, base: X) -> Comparison | None:
        """Compares the change from ``base`` to x with that of the reference."""
        if self.reference is None or name == self.reference:
            return None
        ours, theirs = (
            {seed: at[seed] - before[seed] for seed in at.keys() & before.keys()}
            for each in (name, self.reference)
            for at, before in [[additive(metric, self.by_seed(metric, each, at)) for at in (x, base)]]
        )
        found = difference_of(metric, ours, theirs)
        return None if found is None else Comparison(metric, found.exp() if metric.ratio else found)

    def by_seed(self, metric: Metric, name: str, x: X = None) -> dict[int, float]:
        """Returns the values by seed, without seeds that have none."""
        return values_at(self.runs(name), metric, x)

    def _compared(
        self, metric: Metric, ours: Mapping[int, Run], x: X, theirs: Mapping[int, Run], other: X
    ) -> Comparison | None:
        before = additive(metric, values_at(theirs, metric, other))
        after = additive(metric, values_at(ours, metric, x))
        difference = difference_of(metric, after, before)
        if difference is None:
            return None
        if metric.ratio:
            return Comparison(metric, difference.exp())
        seeds = sorted(after.keys() & before.keys())
        a, b = ([items(side[seed], metric, at) for seed in seeds] for side, at in ((ours, x), (theirs, other)))
        over_items = None if None in a or None in b else within(of_items(a, b), -1.0, 1.0, metric)  # type: ignore[arg-type]
        return Comparison(metric, distinct(difference) if metric.kind == "share" else difference, over_items)


def additive(metric: Metric, values: Mapping[int, float]) -> dict[int, float]:
    """Returns values whose differences are comparisons: the logarithms of values that are compared by ratio."""
    return {seed: math.log(value) if metric.kind == "times" else value for seed, value in values.items()}


def difference_of(metric: Metric, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Estimates the difference, paired by seed. Values that differ by no more than rounding count as equal."""
    equal = {
        seed: theirs[seed] for seed in ours.keys() & theirs.keys() if math.isclose(ours[seed], theirs[seed], **SAME)
    }
    found = paired_difference({**ours, **equal}, theirs)
    return found and within(found, -1.0, 1.0, metric)


def within(found: Estimate, low: float, high: float, metric: Metric) -> Estimate:
    """Limits the interval of a share, or of a difference of shares, to its possible values."""
    if metric.kind != "share" or found.low is None or found.high is None:
        return found
    return dataclasses.replace(found, low=max(found.low, low), high=min(found.high, high))


def values_at(runs: Mapping[int, Run], metric: Metric, x: X) -> dict[int, float]:
    """Returns the values by seed, without seeds that have none."""
    found = {seed: run.value(metric.name, x) for seed, run in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


Items = tuple[tuple[float, ...], tuple[float, ...]]
"""The sums of values and the weights of each item."""


def items(run: Run, metric: Metric, x: X) -> Items | None:
    """Returns the values and weights of each item; None if only the whole was measured."""
    parts = run.found[metric.name, x]
    if any(part.item == ONLY or part.value is None for part in parts):
        return None
    return tuple(part.value or 0.0 for part in parts), tuple(part.weight for part in parts)


def of_items(ours: Sequence[Items], theirs: Sequence[Items]) -> Estimate:
    """Estimates the mean difference over items, paired by item; each argument has one entry per seed."""
    weights, count = ours[0][1], len(ours)
    if all(each[1] == weights for each in (*ours, *theirs)):
        gained = [
            math.fsum(a[0][i] - b[0][i] for a, b in zip(ours, theirs, strict=True)) / count for i in range(len(weights))
        ]
        by_item = shares(gained, weights)
    else:  # in F1 scores, the number of given answers differs between runs
        x, y = ([shares(*each) for each in side] for side in (ours, theirs))
        by_item = tuple(math.fsum(a[i] - b[i] for a, b in zip(x, y, strict=True)) / count for i in range(len(weights)))
    found = dataclasses.replace(estimate(by_item), values=())
    few = found.low == found.high and len(weights) < FEWEST_ALIKE
    return dataclasses.replace(found, low=None, high=None) if few else found


def distinct(difference: Estimate) -> Estimate:
    """Returns a difference of shares, without its interval if a few seeds have the same difference: shares of a few
    hundred examples are often the same by chance, and the interval would have no width."""
    if len(difference.values) >= FEWEST_ALIKE or max(difference.values) - min(difference.values) >= 1e-9:
        return difference
    return dataclasses.replace(difference, low=None, high=None)
