"""The combined results of a folder's runs: what was trained, and the estimates of every metric."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.measure.estimates import Comparison, Estimates
from posembed.measure.metrics import Metric
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.question import Reading, TrainedQuestion


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was trained under one name, over its seeds."""

    name: str
    seeds: tuple[int, ...]
    """The seeds whose runs succeeded."""
    failures: tuple[str, ...]
    parameters: int
    position_parameters: int
    window: int | None
    succeeded: int
    """The number of runs that succeeded."""
    counts: frozenset[int]
    """The numbers of runs behind the means, which may differ by x."""


@dataclass(frozen=True)
class Axis:
    """What values are measured by: the sizes, lengths or amounts of a question.

    Args:
        name: its name, such as "tokens of context".
        x: where the answer looks.
        trained: the x of training; None without one.
        told: the x that the answer compares at; by default that of training and ``x``.
        base: the x that a name's other values are compared with; None without one.
        notes: what tables say below an x in their heads.
    """

    name: str
    x: int
    trained: int | None = None
    base: int | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    told: tuple[int, ...] = ()


class Found(Estimates):
    """The combined results of a folder's runs, with which pages, figures and JSON are made.

    rows: what was trained, in the order of the results. metrics: those that were measured, the main one first.
    spec: any spec, for the shared settings.
    """

    def __init__(
        self,
        question: TrainedQuestion[Any, Any, Any],
        results: Sequence[RunResult[Any, Any]],
        reading: Reading,
        reference: str | None,
        folder: RunFolder[Any] | None,
    ) -> None:
        self.rows = rows_of(results)
        super().__init__(question.frame(results, reading, folder), [row.name for row in self.rows], reference)
        self.question, self.results, self.reading, self.folder = question, results, reading, folder
        self.spec = results[0].spec
        self.metrics = [metric for metric in question.metrics if self.measures(metric)] or list(question.metrics)

    def measures(self, metric: Metric) -> bool:
        """Whether a metric was measured, and is known for some run if it has one value."""
        xs = self.xs(metric)
        return bool(xs) and (xs != (None,) or any(self.by_seed(metric, name) for name in self.names))

    @property
    def headline(self) -> Metric:
        """The main metric."""
        return self.metrics[0]

    def axis_of(self, metric: Metric) -> Axis | None:
        """Returns the axis of a metric; None if it has one value."""
        return None if self.xs(metric) in ((None,), ()) else self.question.axis(self.results, metric)

    @property
    def axis(self) -> Axis | None:
        """The axis of the main metric."""
        return self.axis_of(self.headline)

    def x_of(self, metric: Metric) -> int | None:
        """Returns the x at which the answer looks; None without an axis."""
        axis = self.axis_of(metric)
        return None if axis is None else axis.x

    @property
    def x(self) -> int | None:
        """Where the answer looks at the main metric; None if it has one value."""
        return self.x_of(self.headline)

    @property
    def measured(self) -> Any:
        """The measurements of any successful run; None without one."""
        return next((each.measurements for each in self.results if each.measurements is not None), None)

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def xs(self, metric: Metric) -> tuple[int | None, ...]:
        return self.frame.xs(metric.name)

    def by_x(self, metric: Metric, name: str) -> dict[int | None, Estimate | None]:
        """Returns the means by x; None means that the encoding has no position there."""
        return {x: self.mean(metric, name, x) for x in self.xs(metric)}

    def best_first(self, metric: Metric, x: int | None = None) -> list[str]:
        """Returns the names from the best value; then those without a value there, and those whose runs all failed."""
        sign = -1 if metric.better == "high" else 1

        def key(row: Row) -> tuple[bool, bool, float]:
            found = self.mean(metric, row.name, x)
            value = math.inf if found is None or not math.isfinite(found.value) else sign * found.value
            return not row.seeds, found is None, value

        return [row.name for row in sorted(self.rows, key=key)]

    def all_versus(self, metric: Metric, x: int | None = None) -> dict[str, Comparison]:
        """Returns the comparisons with the reference, from the name with the best value."""
        names = self.best_first(metric, x)
        return {name: each for name in names if (each := self.versus(metric, name, x)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """Returns the rows and every estimate as plain values, with None for NaN and infinity."""
        estimates = [
            {"run": name, "metric": metric.name, "x": x, "mean": self.mean(metric, name, x)}
            | {"versus": versus and versus.over_seeds, "over_items": versus and versus.over_items}
            | {"verdict": versus and versus.verdict}
            for metric in self.metrics
            for x in self.xs(metric)
            for name in self.names
            for versus in [self.versus(metric, name, x)]
        ]
        whole: dict[str, Any] = {"question": self.question.name, "reference": self.reference, "reading": self.reading}
        whole |= {"rows": self.rows, "estimates": estimates}
        return json.loads(json.dumps(whole, default=_plain), parse_constant=lambda name: None)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else dataclasses.asdict(value)


def rows_of(results: Sequence[RunResult[Any, Any]]) -> tuple[Row, ...]:
    """Returns what was trained, one row per name, in order of first appearance."""
    grouped: dict[str, list[RunResult[Any, Any]]] = {}
    for result in results:
        grouped.setdefault(result.spec.compared, []).append(result)
    return tuple(
        Row(
            name=name,
            seeds=tuple(sorted({each.spec.seed for each in runs if each.measurements is not None})),
            failures=tuple(f"{each.spec.case}: {each.failure}" for each in runs if each.failure is not None),
            parameters=runs[0].parameters,
            position_parameters=runs[0].position_parameters,
            window=runs[0].window,
            succeeded=sum(each.measurements is not None for each in runs),
            counts=frozenset(Counter(each.spec.varied for each in runs if each.measurements is not None).values()),
        )
        for name, runs in grouped.items()
    )


def model_size(spec: Any) -> str:
    return f"layers: {spec.layers:,}, width: {spec.width:,}, heads: {spec.heads:,}"
