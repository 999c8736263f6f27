"""What every page ends with: settings, machine, versions, and every value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posembed.lab.results import RunResult
from posembed.report.page import Folded, Pairs, Section, Table


def evidence(results: Sequence[RunResult[Any, Any]], tables: Sequence[Table]) -> Section:
    """Of runs that share all settings but what is compared."""
    settings = results[0].spec.shared_settings()
    return Section(
        "Evidence",
        (
            Folded(
                "Settings", (Pairs(tuple((name.replace("_", " "), _plain(v)) for name, v in settings.items())),)
            ),
            Folded("Machine and versions", (Pairs(tuple(_environments(results))),)),
            Folded("Every value, by seed", tuple(tables)),
        ),
    )


def _environments(results: Sequence[RunResult[Any, Any]]) -> list[tuple[str, str]]:
    """What the runs were made with; where they differ, all of it."""
    names = dict.fromkeys(name for result in results for name in result.environment)
    return [
        (name, "; ".join(dict.fromkeys(r.environment[name] for r in results if name in r.environment)))
        for name in names
    ]


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
