"""A dot plot of estimates: a dot per mean, a bar per interval, a tick per value."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posembed.report.drawing import INK, LETTER, MUTED, PAPER, RULE, SERIES, TEXT, WIDTH, axes_at, new_figure
from posembed.statistics import Estimate


def dots_figure(
    rows: Sequence[tuple[str, Estimate | None, str]], *, title: str, below: str, marked: float | None = None
) -> Figure:
    """Draws rows from the top: (name, estimate or None, text at the right). ``marked``: the x of a vertical line."""
    each = 30
    height = 40 + each * len(rows) + 50
    figure = new_figure(height)
    left = max(len(name) for name, _, _ in rows) * LETTER + 12
    right = max(len(text) for _, _, text in rows) * LETTER + 12
    axes = axes_at(figure, left=left, top=40, width=WIDTH - left - right, height=each * len(rows))
    figure.text(0.005, 1 - 14 / height, title, fontsize=TEXT, color=INK)
    for place, (_, found, text) in enumerate(rows):
        if found is not None:
            if found.low is not None and found.high is not None:
                axes.plot((found.low, found.high), (place, place), color=SERIES[0], linewidth=2, alpha=0.45)
            axes.plot(found.values, [place] * len(found.values), color=SERIES[0], marker="|", linestyle="none")
            axes.plot(found.value, place, color=SERIES[0], marker="o", markersize=7, markeredgecolor=PAPER)
        axes.annotate(
            text,
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(10, 0),
            textcoords="offset points",
            verticalalignment="center_baseline",
            fontsize=TEXT - 1,
            color=MUTED,
        )
    if marked is not None:
        axes.axvline(marked, color=MUTED, linewidth=1, linestyle=(0, (2, 3)), zorder=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=TEXT, color=INK, parse_math=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_xlabel(below, fontsize=TEXT, color=INK)
    return figure
