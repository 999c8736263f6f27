"""The metrics of the lab. They are stored in metrics.json, by group; the fields under "*" hold for the whole group."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from posembed.files import data_of
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
