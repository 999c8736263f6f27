"""The metrics of the lab. They are data, in metrics.json, by group; what stands under "*" holds for a whole group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posembed.measure.metrics import Metric

GROUPS: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def metrics(group: str, **values: object) -> tuple[Metric, ...]:
    """Returns the metrics of a group, in order. ``values``: what stands in braces in their names and texts."""
    shared = {"says": "", **GROUPS[group].get("*", {})}
    return tuple(
        Metric(name.format(**values), **{**fields, "says": fields["says"].format(**values)})
        for name, own in GROUPS[group].items()
        if name != "*"
        for fields in [{**shared, **own}]
    )
