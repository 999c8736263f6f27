"""The last sections of every page about runs: training losses, settings, machine and all measured values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from posembed.lab.runs.results import RunResult
from posembed.plots.canvas import room_for, sheet
from posembed.plots.style import PAPER, styles
from posembed.plots.ticks import label_line_ends, tick_heights
from posembed.report.page import Cell, Folded, Pairs, Section, Table, picture, table_of

HOW_TO_READ = "One line per run. Each name stands at the mean final loss of its runs. A cross marks a run that failed."


def training_section(results: Sequence[RunResult], *, unit: str) -> Section:
    """Returns a section with a figure of the training losses. ``unit``: the unit of a loss, such as "per token"."""
    figure, described = training_figure(results, unit=unit), "Training loss by step, with one line per run."
    return Section("Training", (picture(figure, name="training", described=described, caption=HOW_TO_READ),))


def training_figure(results: Sequence[RunResult], *, unit: str = "per token") -> Figure:
    """Draws the smoothed training loss by step on logarithmic axes: a line per run, with a cross if the run failed."""
    drawn = styles([result.spec.compared for result in results])
    title, below = f"training loss, nats {unit} (log scale)", "training step (log scale)"
    figure, axes = sheet(212, title=title, below=below, right=room_for(drawn))
    axes.set_xscale("log")
    axes.set_yscale("log")
    last: dict[str, list[float]] = {}
    for result in results:
        if not result.losses:
            continue
        name, style = result.spec.compared, drawn[result.spec.compared]
        steps, losses = [step for step, _ in result.losses], smoothed([loss for _, loss in result.losses])
        axes.plot(steps, losses, color=style.colour, linestyle=style.line, linewidth=1.2, alpha=0.8)
        if result.failure is None:
            last.setdefault(name, []).append(losses[-1])
        else:
            axes.plot(steps[-1], losses[-1], color=style.colour, marker="X", markersize=9, markeredgecolor=PAPER)
    axes.set_xlim(right=max(result.spec.steps for result in results))
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    tick_heights(axes)
    label_line_ends(axes, [(math.fsum(ends) / len(ends), name, drawn[name].colour) for name, ends in last.items()])
    return figure


def run_evidence(results: Sequence[RunResult], values: Sequence[Table]) -> Section:
    """Returns a section with the settings, the machine and all values. ``values``: tables of the runs' measurements."""
    environments = [result.environment for result in results]
    found = {
        name: "; ".join(dict.fromkeys(each[name] for each in environments if name in each))
        for name in dict.fromkeys(name for each in environments for name in each)
    }
    runs = table_of(
        results,
        "Runs",
        "",
        ("last training loss", lambda run: f"{run.losses[-1][1]:.5f}" if run.losses else ""),
        ("seconds", lambda run: f"{run.seconds:,.0f}"),
        ("tokens per second", lambda run: f"{run.tokens_per_second:,.0f}"),
        (Cell("ended", kind="words"), lambda run: f"failed: {run.failure}" if run.failure else "finished"),
        first="run",
        name=lambda run: run.spec.name,
    )
    return evidence_section(results[0].spec.shared_settings(), found, (*values, runs))


def evidence_section(settings: Mapping[str, Any], environment: Mapping[str, str], values: Sequence[Table]) -> Section:
    def plain(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    named = tuple((name.replace("_", " "), plain(value)) for name, value in settings.items())
    parts = [
        Folded("Settings", (Pairs(named),)),
        Folded("Machine and versions", (Pairs(tuple(environment.items())),)),
    ]
    if values:
        parts.append(Folded("Every value, by seed", tuple(values)))
    return Section("Evidence", tuple(parts))


def smoothed(losses: Sequence[float]) -> list[float]:
    """Averages each loss with up to three neighbours on each side, fewer near the ends."""
    means = []
    for index in range(len(losses)):
        side = min(3, index, len(losses) - 1 - index)
        near = losses[index - side : index + side + 1]
        means.append(math.fsum(near) / len(near))
    return means
