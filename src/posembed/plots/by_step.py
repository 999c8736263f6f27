"""Numbers by training step, one plot below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from posembed.plots.canvas import axes_at, new_figure, room_for
from posembed.plots.style import WIDTH, styles
from posembed.plots.ticks import label_line_ends

EACH = 150
FAR_APART = 20
"""Values with a larger ratio than this get a logarithmic axis."""


def by_step_figure(measures: Mapping[str, Mapping[str, Sequence[float]]], steps: Mapping[str, Sequence[int]]) -> Figure:
    """Draws measures by training step: one plot per measure, one line per name.

    measures: by title and name, a value at each of the name's ``steps``.
    """
    figure = new_figure(EACH * len(measures) + 24)
    drawn = styles(list(steps))
    named = steps if len(steps) > 1 else {}
    for index, (title, curves) in enumerate(measures.items()):
        x = "training step (log scale)" if index == len(measures) - 1 else ""
        top, width = 26 + index * EACH, WIDTH - 40 - room_for(named)
        axes = axes_at(figure, left=40, top=top, width=width, height=EACH - 52, title=title, x=x, grid="y")
        for name, curve in curves.items():
            axes.plot(steps[name], curve, color=drawn[name].colour, linestyle=drawn[name].line, linewidth=1.6)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(step for each in steps.values() for step in each))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(4))
        lasts = [curve[-1] for curve in curves.values()]
        if max(lasts) > FAR_APART * min(lasts) > 0:
            axes.set_yscale("log", nonpositive="mask")
            axes.set_ylim(min(lasts) / 4, max(lasts) * 2)
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(*axes.get_ylim())  # fixed before the labels are placed
        label_line_ends(axes, [(curves[name][-1], name, drawn[name].colour) for name in named])
    return figure
