"""The metrics of the lab, and what a run measured of them, as plain data: one shape for all tasks.

The metrics are stored in metrics.json, by group; the fields under "*" hold for the whole group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from posembed.files import data_of
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric

GROUPS: dict[str, dict[str, dict[str, Any]]] = data_of(__file__)
LOGARITHMS = {name for group in GROUPS.values() for name, fields in group.items() if fields.get("kind") == "log"}
"""The names of the metrics whose values are kept as logarithms: losses of perplexities."""

_ESCAPED = (re.escape(name) for each in GROUPS.values() for name in each if name != "*")
NAMES = re.compile("({})(, .*)?".format("|".join(re.sub(r"\\{.*?\\}", ".*", name) for name in _ESCAPED)))
"""Matches the name of every metric. Braces in metrics.json stand for any text, and a task may add after a comma what it
measures apart: "loss, at each position"."""


def metrics(*groups: str, **values: object) -> tuple[Metric, ...]:
    """Returns the metrics of groups, in order. ``values`` replace the braces in their names and texts."""
    return tuple(each for group in groups for each in of_group(group, **values))


@cache
def of_group(group: str, **values: object) -> tuple[Metric, ...]:
    return tuple(
        Metric(name.format(**values), **{**fields, "says": fields.get("says", "").format(**values)})
        for name, own in GROUPS[group].items()
        if name != "*"
        for fields in [{**GROUPS[group].get("*", {}), **own}]
    )


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
