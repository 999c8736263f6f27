"""The last sections of every page about runs: how they trained, and every value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posembed.lab.runs.results import RunResult
from posembed.report.page import Cell, Folded, Pairs, Section, Table, picture, table_of
from posembed.report.training_curve import training_figure


def training_section(results: Sequence[RunResult[Any, Any]], *, unit: str, note: str) -> Section:
    """Returns the training losses as a figure. ``unit``: what a loss is the mean of; ``note``: a sentence on it."""
    caption = f"{note} One line per run; each name is at the mean of its last losses.".strip()
    if any(result.failure is not None for result in results):
        caption += " A cross marks where a run failed."
    figure = training_figure(results, unit=unit)
    return Section("Training", (picture(figure, name="training", described="Training loss by step.", caption=caption),))


def evidence_section(results: Sequence[RunResult[Any, Any]], values: Sequence[Table]) -> Section:
    """Returns the settings, the machine and every value, folded. ``values``: tables of what each run measured."""
    settings = tuple(
        (name.replace("_", " "), _plain(value)) for name, value in results[0].spec.shared_settings().items()
    )
    return Section(
        "Evidence",
        (
            Folded("Settings", (Pairs(settings),)),
            Folded("Machine and versions", (Pairs(_environments(results)),)),
            Folded("Every value, by seed", (*values, _runs(results))),
        ),
    )


def _runs(results: Sequence[RunResult[Any, Any]]) -> Table:
    return table_of(
        results,
        "Runs",
        "",
        ("last training loss", lambda run: f"{run.losses[-1][1]:.5f}" if run.losses else ""),
        ("seconds", lambda run: f"{run.seconds:,.0f}"),
        ("tokens per second", lambda run: f"{run.tokens_per_second:,.0f}"),
        (
            Cell("ended", kind="words"),
            lambda run: Cell(f"failed: {run.failure}" if run.failure else "finished", kind="words"),
        ),
        first="run",
        name=lambda run: run.spec.name,
    )


def _environments(results: Sequence[RunResult[Any, Any]]) -> tuple[tuple[str, str], ...]:
    """Returns machine and versions of the runs; where they differ, all of them."""
    names = dict.fromkeys(name for result in results for name in result.environment)
    return tuple(
        (name, "; ".join(dict.fromkeys(r.environment[name] for r in results if name in r.environment)))
        for name in names
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
