"""Estimates by position or by training step, one plot below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posembed.plots.canvas import page, room_for
from posembed.plots.style import DOTS, MUTED, WIDTH, styles
from posembed.plots.ticks import label_line_ends, tick_heights
from posembed.statistics import Estimate

EACH = 164


@dataclass(frozen=True)
class Panel:
    """One plot: estimates by name and position. marked: a y with a dotted line."""

    title: str
    lines: Mapping[str, Mapping[int, Estimate]]
    logarithmic: bool = False
    marked: float | None = None


def by_position_figure(panels: Sequence[Panel], names: Sequence[str], *, steps: bool = False) -> Figure:
    """Draws panels over the same positions. Lines are means, and bands are intervals where they are known.

    names: all names that are compared, so that a name has the same colour in every figure. The name "" is not written,
    and neither is a single name. steps: whether the positions are training steps, on a logarithmic scale.
    """
    name_of_x = "training step (log scale)" if steps else "position"
    whole, drawn = page(EACH * len(panels) + 24), styles(names)
    named = {name for panel in panels for name in panel.lines if name and len(names) > 1}
    room = room_for(named)
    last = max((p for panel in panels for line in panel.lines.values() for p in line), default=0)
    for index, panel in enumerate(panels):
        where = {"left": 44, "top": 26 + index * EACH, "width": WIDTH - 44 - room, "height": EACH - 58}
        axes = whole.at(title=panel.title, x=name_of_x if index == len(panels) - 1 else "", grid="y", **where)
        for name, line in panel.lines.items():
            style, means = drawn[name], [estimate.value for estimate in line.values()]
            axes.plot(list(line), means, color=style.colour, linestyle=style.line, linewidth=1.4)
            known = [(p, e.low, e.high) for p, e in line.items() if e.low is not None and e.high is not None]
            if known and not panel.logarithmic:
                places, lows, highs = zip(*known, strict=True)
                axes.fill_between(places, lows, highs, color=style.colour, alpha=0.12, linewidth=0)
        if panel.logarithmic:
            axes.set_yscale("log", nonpositive="mask")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4))
        if panel.marked is not None:
            axes.axhline(panel.marked, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
        if steps:
            axes.set_xscale("symlog", linthresh=1)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlim(0, max(last, 1))
        axes.xaxis.set_major_formatter(lambda position, _: f"{position:,.0f}")
        axes.set_ylim(*axes.get_ylim())  # fixed before the labels are placed
        if panel.logarithmic:
            tick_heights(axes)
        ends = [(list(panel.lines[name].values())[-1].value, name) for name in panel.lines if name in named]
        label_line_ends(axes, [(end, name, drawn[name].colour) for end, name in ends])
    return whole.axes
