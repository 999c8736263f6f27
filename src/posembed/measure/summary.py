"""What a page needs from the measurements: the rows, the metrics, their axis, and the estimates of each metric."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from posembed.measure.estimates import Comparison, Estimates
from posembed.measure.metrics import Metric
from posembed.statistics import INTERVAL, Estimate

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Axis:
    """The x axis of measured values: the sizes, lengths or amounts of a question.

    Args:
        name: its name, such as "tokens of context".
        x: the x at which the answer compares names.
        trained: the x of training; None without one.
        told: several x at which the answer compares names; by default ``x`` and ``trained``.
        base: the x that a name's other values are compared with; None without one.
        notes: the text below an x in column heads, by x.
    """

    name: str
    x: int
    trained: int | None = None
    base: int | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    told: tuple[int, ...] = ()


class Summary(Estimates):
    """The estimates of a question, from which pages, figures and JSON are made.

    rows: what is compared, in order, each with its name, its ``seeds`` that succeeded, and the ``failures`` of the
    others. metrics: the measured metrics, the main one first. axis: their x axis; None if each has a single value.
    of_each: the word after "per" in a number of runs: "3 runs per encoding". items: what was held out, such as "texts";
    unit: one of them. paired_by: what comparisons are paired by.
    baselines: names whose lines are grey. past_end: the caption's words before the x at which a line ends. whole_axis:
    whether the figure by x has room for every value, even far above the lowest. dots: the caption of the figure of a
    metric without x.
    """

    rows: Sequence[Any]
    metrics: Sequence[Metric]
    axis: Axis | None
    of_each: str
    items: str
    unit: str = "text"
    paired_by: str = "seed"
    baselines: Sequence[str] = ()
    past_end: str = "no position past"
    whole_axis: bool = False
    dots: str = f"Dots are means and ticks are seeds. With several runs, bars are {INTERVAL}s."

    @property
    def drawn(self) -> Sequence[Any]:
        """The rows that the figure by x shows."""
        return self.rows

    @property
    def bands(self) -> str:
        """A sentence on the intervals of that figure."""
        return f"With several runs per {self.of_each}, shaded bands are {INTERVAL}s."

    def end(self, name: str) -> int | None:
        """Returns the x at which the line of a name ends, if it is known."""
        return None

    @cached_property
    def references(self) -> dict[str, str]:
        """The name that each name is compared with."""
        return {name: other for name in self.names if (other := self.reference_of(name)) is not None}

    @property
    def compared_with(self) -> str:
        """What titles and captions call the reference: its name, or "its reference" if names have different ones."""
        known = set(self.references.values())
        return "its reference" if len(known) > 1 else next(iter(known), self.reference or "")

    @property
    def short_reference(self) -> str:
        """What column heads call the reference."""
        return self.compared_with

    def missing(self, name: str, x: int | None) -> str:
        """Returns what tables say where a name has no value; empty means ``Metric.missing``."""
        return ""

    @property
    def headline(self) -> Metric:
        """The main metric."""
        return self.metrics[0]

    def axis_of(self, metric: Metric) -> Axis | None:
        """Returns the axis of a metric; None if it has one value."""
        return None if self.xs(metric) in ((None,), ()) else self.axis

    def x_of(self, metric: Metric) -> int | None:
        """Returns the x at which the answer compares names; None without an axis."""
        axis = self.axis_of(metric)
        return None if axis is None else axis.x

    @property
    def x(self) -> int | None:
        """The x at which the answer compares the main metric; None if it has one value."""
        return self.x_of(self.headline)

    def row(self, name: str) -> Any:
        return next(row for row in self.rows if row.name == name)

    def xs(self, metric: Metric) -> tuple[int | None, ...]:
        return self.frame.xs(metric.name)

    def by_x(self, metric: Metric, name: str) -> dict[int | None, Estimate | None]:
        """Returns the means by x; None means that the encoding has no position there."""
        return {x: self.mean(metric, name, x) for x in self.xs(metric)}

    def best_first(self, metric: Metric, x: int | None = None) -> list[str]:
        """Returns the names, best value first; then those without a value at x, then those whose runs all failed."""
        sign = -1 if metric.better == "high" else 1

        def key(row: Any) -> tuple[bool, bool, float]:
            found = self.mean(metric, row.name, x)
            value = math.inf if found is None or not math.isfinite(found.value) else sign * found.value
            return not row.seeds, found is None, value

        return [row.name for row in sorted(self.rows, key=key)]

    def all_versus(self, metric: Metric, x: int | None = None) -> dict[str, Comparison]:
        """Returns the comparisons with the reference, by name, the best value first."""
        names = self.best_first(metric, x)
        return {name: each for name in names if (each := self.versus(metric, name, x)) is not None}

    def to_pandas(self) -> DataFrame:
        """Returns every value as a tidy frame, with the columns of ``posembed.measure.frame.COLUMNS``. Metrics whose
        values are kept as logarithms say so in their names: "log perplexity"."""
        logarithms = {metric.name: f"log {metric.name}" for metric in self.metrics if metric.kind == "log"}
        return self.frame.to_pandas().replace({"metric": logarithms})

    def estimates(self) -> list[dict[str, Any]]:
        """Returns every estimate and its comparison as plain values. NaN and infinity become None."""
        found = [
            {"run": name, "metric": metric.name, "x": x, "mean": self.mean(metric, name, x)}
            | {"versus": versus and versus.over_seeds, "over_items": versus and versus.over_items}
            | {"reference": self.reference_of(name), "verdict": versus and versus.verdict}
            for metric in self.metrics
            for x in self.xs(metric)
            for name in self.names
            for versus in [self.versus(metric, name, x)]
        ]
        return plain(found)


def reached(values: Mapping[Any, float | None], least: float) -> Any:
    """Returns the largest x such that the values at this x and at all smaller x are at least ``least`` (NaN never is);
    None if there is no such x."""
    largest = None
    for x, value in sorted(values.items()):
        if value is None or not value >= least:
            break
        largest = x
    return largest


def plain(value: Any) -> Any:
    """Returns the value in the types of JSON, with None for NaN and infinity."""

    def of_other(each: Any) -> Any:
        return sorted(each) if isinstance(each, frozenset) else dataclasses.asdict(each)

    return json.loads(json.dumps(value, default=of_other), parse_constant=lambda name: None)
