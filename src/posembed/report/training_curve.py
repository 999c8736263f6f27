"""Training loss against the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from posembed.lab.curves import smoothed
from posembed.lab.runs.results import RunResult
from posembed.report.drawing import PAPER, lines_sheet, styles, tick_heights
from posembed.report.labels import label_line_ends


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
