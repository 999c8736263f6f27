"""The figure of comparisons with a reference: one line per name, with intervals over seeds and over items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from posembed.measure.estimates import Comparison
from posembed.plots.charts import draw_interval, rows_sheet, write_right
from posembed.plots.style import MARKERS, MUTED, PAPER, styles
from posembed.words import MINUS

NAMES = 30
"""The largest number of letters in a line of a name beside the figure."""


def comparison_figure(compared: Mapping[str, Comparison], names: Sequence[str], reference: str) -> Figure:
    """Draws the comparisons, best first. Thick bars are intervals over seeds, thin bars over items. names: all names of
    the page, so that each keeps its colour."""
    metric, drawn = next(iter(compared.values())).metric, styles(names)
    best_first = sorted(compared, key=lambda name: compared[name].value, reverse=metric.better == "high")
    kind = "divided by" if metric.ratio else "minus"
    unit = ", in percentage points" if metric.kind == "share" else metric.unit and f", in {metric.unit}"
    sides = "worse ← → better" if metric.better == "high" else "better ← → worse"
    title, labels = f"{metric.name} {kind} that of {reference}{unit}", [fill(name, NAMES) for name in best_first]
    figure, axes = rows_sheet(labels, title=title, below=sides, each=34, right=56)
    factor = 100 if metric.kind == "share" else 1
    axes.axvline(metric.same, color=MUTED, linewidth=1)
    for row, name in enumerate(best_first):
        colour, each = drawn[name].colour, compared[name]
        for estimate, width, end in ((each.over_items, 1.2, "|"), (each.over_seeds, 4.0, "")):
            how: dict[str, Any] = {"linewidth": width, "marker": end, "markersize": 12, "solid_capstyle": "butt"}
            if estimate is not None:
                draw_interval(axes, estimate, row, factor=factor, color=colour, **how)
        marker = MARKERS[drawn[name].index]
        axes.plot(factor * each.value, row, color=colour, marker=marker, markersize=7, markeredgecolor=PAPER)
        write_right(axes, row, metric.write_comparison(each.value), colour)
    if max(map(len, names)) > NAMES:  # they leave little width
        axes.xaxis.set_major_locator(MaxNLocator(2))
    if metric.kind == "share":
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -0.5), max(high, 0.5))
    if not metric.ratio:
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+g}".replace("-", MINUS) if value else "0")
        )
    return figure
