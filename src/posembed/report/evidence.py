"""The last sections of every page about runs: how they trained, and every value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from posembed.lab.runs.results import RunResult
from posembed.report.drawing import PAPER, lines_sheet, styles, tick_heights
from posembed.report.labels import label_line_ends
from posembed.report.page import Cell, Folded, Pairs, Section, Table, picture, table_of


def training_section(results: Sequence[RunResult[Any, Any]], *, unit: str, note: str) -> Section:
    """Returns the training losses as a figure. ``unit``: what a loss is the mean of; ``note``: a sentence on it."""
    caption = f"{note} One line per run; each name is at the mean of its last losses.".strip()
    if any(result.failure is not None for result in results):
        caption += " A cross marks where a run failed."
    figure = training_figure(results, unit=unit)
    return Section("Training", (picture(figure, name="training", described="Training loss by step.", caption=caption),))


def training_figure(results: Sequence[RunResult[Any, Any]], *, unit: str = "per token") -> Figure:
    """Draws the smoothed training loss by step on logarithmic axes: one line per run, a cross where one failed."""
    drawn = styles([result.spec.compared for result in results])
    figure, axes = lines_sheet(
        290,
        title=f"training loss, nats {unit} (log scale)",
        below="training step (log scale)",
        names=list(drawn),
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    last: dict[str, list[float]] = {}
    for result in results:
        if not result.losses:
            continue
        name = result.spec.compared
        style = drawn[name]
        steps, losses = [step for step, _ in result.losses], smoothed([loss for _, loss in result.losses])
        axes.plot(steps, losses, color=style.colour, linestyle=style.line, linewidth=1.2, alpha=0.8)
        if result.failure is None:
            last.setdefault(name, []).append(losses[-1])
        else:
            axes.plot(steps[-1], losses[-1], color=style.colour, marker="X", markersize=9, markeredgecolor=PAPER)
    axes.set_xlim(right=max(result.spec.steps for result in results))
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    tick_heights(axes)
    label_line_ends(axes, [(math.fsum(ends) / len(ends), name, drawn[name].colour) for name, ends in last.items()])
    return figure


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


def smoothed(losses: Sequence[float], *, each_side: int = 3) -> list[float]:
    """Averages each loss with its neighbours, as many before as after; fewer near the ends."""
    means = []
    for index in range(len(losses)):
        side = min(each_side, index, len(losses) - 1 - index)
        near = losses[index - side : index + side + 1]
        means.append(math.fsum(near) / len(near))
    return means
