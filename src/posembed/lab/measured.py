"""What a run measured, as plain data: one shape for all tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from posembed.measure.frame import Value
from posembed.measure.metrics import Metric


@dataclass(frozen=True)
class Measured:
    """What was measured of a trained model.

    values: the values of all metrics. sizes: the numbers of examples, documents and so on that were measured, by what
    they are. classes: the number of examples of each class or label. unseen: the number of examples that the model does
    not see, because they are past the training length.
    """

    values: tuple[Value, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    unseen: int = 0

    def by_x(self, metric: Metric) -> dict[Any, float | None]:
        """Returns the values of a metric by x."""
        return {each.x: each.value for each in self.values if each.metric == metric.name}


def by_x(known: Mapping[Metric, Mapping[Any, float | None]]) -> Iterator[Value]:
    """Returns the values of metrics by x; the x is None for a metric with a single value."""
    return (Value(metric.name, value, x) for metric, values in known.items() for x, value in values.items())


def by_item(metric: Metric, sums: Iterable[float], weights: Iterable[float]) -> Iterator[Value]:
    """Returns the values of documents: sums over their examples, with the number of examples as weights."""
    for item, (total, weight) in enumerate(zip(sums, weights, strict=True)):
        yield Value(metric.name, total, item=item, weight=weight)
