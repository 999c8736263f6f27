"""The combined results of a folder's runs: what was trained, and the estimates of every metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from posembed.lab.metrics import Measured
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.measure.metrics import Metric
from posembed.measure.summary import Axis, Summary, plain

if TYPE_CHECKING:
    from posembed.lab.question import Reading, TrainedQuestion


Results: TypeAlias = "Sequence[RunResult]"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of one compared name, over all seeds."""

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
    """The numbers of runs behind a mean, which may differ between the values of ``Spec.VARIED``."""


class Found(Summary):
    """The combined results of a folder's runs, from which pages, figures and JSON are made.

    rows: one per compared name, in the order of the results. metrics: the measured metrics, the main one first. spec:
    the spec of any run, for the settings that all runs share.
    """

    def __init__(
        self,
        question: TrainedQuestion,
        results: Results,
        reading: Reading,
        reference: str | None,
        folder: RunFolder | None,
    ) -> None:
        self.rows = rows_of(results)
        super().__init__(question.frame(results, reading), [row.name for row in self.rows], reference)
        self.question, self.results, self.reading, self.folder = question, results, reading, folder
        self.of_each, self.items = question.of_each, question.items
        self.spec = results[0].spec
        self.metrics = [metric for metric in question.metrics if self.measures(metric)] or list(question.metrics)
        self.axis = self.axis_of(self.headline)

    def reference_of(self, name: str) -> str | None:
        return self.question.reference_of(self, name)

    def measures(self, metric: Metric) -> bool:
        """Whether a metric was measured. A metric with a single value must also be known for some run."""
        xs = self.xs(metric)
        return bool(xs) and (xs != (None,) or any(self.by_seed(metric, name) for name in self.names))

    def axis_of(self, metric: Metric) -> Axis | None:
        return None if self.xs(metric) in ((None,), ()) else self.question.axis(self.results, metric)

    @cached_property
    def specs(self) -> dict[str, Any]:
        """One spec for each compared name."""
        return {result.spec.compared: result.spec for result in self.results}

    @property
    def measured(self) -> Measured | None:
        """The measurements of any successful run; None without one."""
        return next((each.measurements for each in self.results if each.measurements is not None), None)

    def about(self) -> str:
        return self.question.about(self)

    @cached_property
    def special(self) -> Any:
        return self.question.special(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the rows and every estimate as plain values, with None for NaN and infinity."""
        about = {"question": self.question.name, "reference": self.reference, "reading": plain(self.reading)}
        special = {} if self.special is None else {"special": plain(self.special)}
        return {**about, "rows": plain(self.rows), "estimates": self.estimates(), **special}


def rows_of(results: Results) -> tuple[Row, ...]:
    """Groups the results into one row per compared name, in the order of first appearance."""
    grouped: dict[str, list[RunResult]] = {}
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
