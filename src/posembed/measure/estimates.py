"""Estimates from a frame: means over seeds, and comparisons with a reference or with a base x, with a verdict."""

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
ENOUGH_SEEDS = 3
"""With fewer seeds, an interval over seeds is too wide to decide anything, so the interval over items decides."""
SAME = {"rel_tol": 1e-12, "abs_tol": 1e-12}
"""Tolerances for two equal values whose sums were rounded differently."""
X = int | None


@dataclass(frozen=True)
class Comparison:
    """A difference or a ratio, paired by seed or by item.

    over_seeds: the mean, whose interval reflects the variation between seeds; None if too few seeds, or none, were
    drawn. over_items: the same mean, whose interval reflects the variation between held-out items; None if nothing was
    measured by item. equal: whether no item differs. The comparison is significant if every known kind of interval
    excludes ``metric.same``.
    """

    metric: Metric
    over_seeds: Estimate | None
    over_items: Estimate | None = None
    equal: bool = False

    @property
    def kinds(self) -> list[Estimate]:
        return [each for each in (self.over_seeds, self.over_items) if each is not None]

    @property
    def value(self) -> float:
        return self.kinds[0].value

    @property
    def verdict(self) -> Verdict:
        """Whether the values are better or worse than the reference's."""
        sides = {each.side_of(self.metric.same) for each in self.kinds}
        if self.equal:
            return "equal"
        if len(sides) == 1:
            return self.metric.verdict(sides.pop())
        return "unknown" if None in sides else "not significant"

    @property
    def width(self) -> float:
        """The width of the wider interval; 0 if none is known."""
        known = [each.high - each.low for each in self.kinds if each.low is not None and each.high is not None]
        return max(known, default=0.0)


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

    def reference_of(self, name: str) -> str | None:
        """Returns the name that a name is compared with; None for the reference itself."""
        return None if name == self.reference else self.reference

    def mean(self, metric: Metric, name: str, x: X = None) -> Estimate | None:
        """Estimates the mean over seeds; None if a run has no value there, or if there is no run."""
        values = self.by_seed(metric, name, x)
        measured = sum((metric.name, x) in run.found for run in self.runs(name).values())
        found = estimate(list(values.values())) if values and len(values) == measured else None
        return found and (found.exp() if metric.kind == "log" else found.within(*metric.bounds))

    def versus(self, metric: Metric, name: str, x: X = None) -> Comparison | None:
        """Compares a name with the reference; None for the reference itself, and if the two share no seed."""
        reference = self.reference_of(name)
        return None if reference is None else self._compared(metric, self.runs(name), x, self.runs(reference), x)

    def against(self, metric: Metric, name: str, x: X, base: X) -> Comparison | None:
        """Compares the values at x with the same name's values at ``base``."""
        own = self.runs(name)
        return self._compared(metric, own, x, own, base)

    def change(self, metric: Metric, name: str, x: X, base: X) -> Comparison | None:
        """Compares the change from ``base`` to x with the change of the reference."""
        if (reference := self.reference_of(name)) is None:
            return None
        ours, theirs = (
            {seed: at[seed] - before[seed] for seed in at.keys() & before.keys()}
            for each in (name, reference)
            for at, before in [[additive(metric, self.by_seed(metric, each, at)) for at in (x, base)]]
        )
        found = difference_of(metric, ours, theirs)
        return None if found is None else Comparison(metric, found.exp() if metric.ratio else found)

    def by_seed(self, metric: Metric, name: str, x: X = None) -> dict[int, float]:
        """Returns the values by seed, without seeds that have no value."""
        return values_at(self.runs(name), metric, x)

    def _compared(
        self, metric: Metric, ours: Mapping[int, Run], x: X, theirs: Mapping[int, Run], other: X
    ) -> Comparison | None:
        over_seeds = compared_over_seeds(metric, ours, x, theirs, other)
        if over_seeds is None:
            return None
        if metric.ratio:
            return Comparison(metric, over_seeds)
        shared = sorted(values_at(ours, metric, x).keys() & values_at(theirs, metric, other).keys())
        gained = differences([ours[seed] for seed in shared], x, [theirs[seed] for seed in shared], other, metric)
        over_items = None if gained is None else of_items(gained, metric)
        return Comparison(metric, distinct(over_seeds) if metric.kind == "share" else over_seeds, over_items)


def additive(metric: Metric, values: Mapping[int, float]) -> Mapping[int, float]:
    """Returns the values to subtract in a comparison: logarithms for a metric that is compared by ratio (without values
    of 0, which have no ratio), or else the values themselves."""
    return {seed: math.log(value) for seed, value in values.items() if value > 0} if metric.kind == "times" else values


def difference_of(metric: Metric, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Estimates the difference, paired by seed. Values that differ by no more than rounding count as equal."""
    equal = {
        seed: theirs[seed] for seed in ours.keys() & theirs.keys() if math.isclose(ours[seed], theirs[seed], **SAME)
    }
    found = paired_difference({**ours, **equal}, theirs)
    return found and possible(found, metric)


def possible(difference: Estimate, metric: Metric) -> Estimate:
    """Limits the interval of a difference to possible values, such as -1 to 1 for shares."""
    return difference.within(-metric.bounds[1], metric.bounds[1])


def mean_over_items(metric: Metric, runs: Sequence[Run], x: X) -> Estimate | None:
    """Estimates the mean, with an interval over items; None if a run has no items. Equal items have no interval."""
    found = [items(run, metric, x) for run in runs]
    known = [shares(*sums(each)) for each in found if each is not None]
    if not known or None in found:
        return None
    by_item = estimate([math.fsum(each) / len(known) for each in zip(*known, strict=True)])
    whole = by_item if by_item.low != by_item.high else dataclasses.replace(by_item, low=None, high=None)
    return whole.exp() if metric.kind == "log" else whole.within(*metric.bounds)


def compared_over_items(
    metric: Metric, ours: Mapping[int, Run], x: X, theirs: Mapping[int, Run], other: X
) -> Comparison | None:
    """Compares runs on the same items. The interval over seeds counts too if there are ``ENOUGH_SEEDS``."""
    seeds = sorted(ours.keys() & theirs.keys())
    gained = differences([ours[seed] for seed in seeds], x, [theirs[seed] for seed in seeds], other, metric)
    if gained is None:
        return None
    over_items = of_items(gained, metric)
    over_seeds = compared_over_seeds(metric, ours, x, theirs, other)
    if metric.kind == "log":
        over_items = over_items.exp()
    if equal := not any(gained):
        over_items = dataclasses.replace(over_items, low=None, high=None)
    varied = over_seeds is not None and over_seeds.low != over_seeds.high  # a baseline is the same for all seeds
    return Comparison(metric, over_seeds if varied and len(seeds) >= ENOUGH_SEEDS else None, over_items, equal)


def compared_over_seeds(
    metric: Metric, ours: Mapping[int, Run], x: X, theirs: Mapping[int, Run], other: X
) -> Estimate | None:
    """Compares runs of the same seeds; None if no seed has both runs."""
    after, before = (additive(metric, values_at(*of)) for of in ((ours, metric, x), (theirs, metric, other)))
    found = difference_of(metric, after, before)
    return found and (found.exp() if metric.ratio else found)


def values_at(runs: Mapping[int, Run], metric: Metric, x: X) -> dict[int, float]:
    """Returns the values by seed, without seeds that have no value."""
    found = {seed: run.value(metric.name, x) for seed, run in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


Items = Mapping[int | str, tuple[float, float]]
"""The sum of values and the weight of each item."""


def items(run: Run, metric: Metric, x: X) -> Items | None:
    """Returns the values and weights of each item; None if only the whole run was measured."""
    found: dict[int | str, tuple[float, float]] = {}
    for part in run.found.get((metric.name, x), []):
        if part.item == ONLY or part.value is None:
            return None
        total, weight = found.get(part.item, (0.0, 0.0))
        found[part.item] = total + part.value, weight + part.weight
    return found or None


def sums(of: Items) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the sums and the weights of items."""
    return tuple(total for total, _ in of.values()), tuple(weight for _, weight in of.values())


def differences(ours: Sequence[Run], x: X, theirs: Sequence[Run], other: X, metric: Metric) -> tuple[float, ...] | None:
    """Returns the difference of each item, the mean over runs of the same seeds; None if the items are not the same."""
    found = [items(run, metric, at) for side, at in ((ours, x), (theirs, other)) for run in side]
    known = [sums(each) for each in found if each is not None and each.keys() == (found[0] or {}).keys()]
    if not known or len(known) < len(found):
        return None
    a, b, weights, count = known[: len(ours)], known[len(ours) :], known[0][1], len(ours)
    if all(each[1] == weights for each in known):
        gained = [math.fsum(x[0][i] - y[0][i] for x, y in zip(a, b, strict=True)) / count for i in range(len(weights))]
        return shares(gained, weights)
    # In F1 scores, the number of given answers differs between runs.
    of_a, of_b = ([shares(*each) for each in side] for side in (a, b))
    return tuple(math.fsum(x[i] - y[i] for x, y in zip(of_a, of_b, strict=True)) / count for i in range(len(weights)))


def of_items(gained: Sequence[float], metric: Metric) -> Estimate:
    """Estimates the mean difference over items. A few equal differences have no interval."""
    found = dataclasses.replace(possible(estimate(gained), metric), values=())
    few = found.low == found.high and len(gained) < FEWEST_ALIKE
    return dataclasses.replace(found, low=None, high=None) if few else found


def distinct(difference: Estimate) -> Estimate:
    """Returns a difference of shares, without its interval if a few seeds have the same difference: shares of a few
    hundred examples are often the same by chance, and the interval would have no width."""
    if len(difference.values) >= FEWEST_ALIKE or max(difference.values) - min(difference.values) >= 1e-9:
        return difference
    return dataclasses.replace(difference, low=None, high=None)
