"""Plots with a row per name: estimates as dots, their intervals as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posembed.report.drawing import INK, LETTER, MUTED, PAPER, RULE, SERIES, TEXT, WIDTH, axes_at, new_figure
from posembed.statistics import Estimate


def rows_sheet(
    names: Sequence[str], *, title: str, below: str, each: float = 30, top: float = 40, right: float = 16
) -> tuple[Figure, Axes]:
    """Returns a figure with one row per name, from the top: row i is at y = i, ``each`` high."""
    height = top + each * len(names) + 48
    figure = new_figure(height)
    left = max(map(len, names)) * LETTER + 14
    axes = axes_at(figure, left=left, top=top, width=WIDTH - left - right, height=each * len(names))
    figure.text(0.005, 1 - 14 / height, title, fontsize=TEXT, color=INK)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=TEXT, color=INK, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=TEXT)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_xlabel(below, fontsize=TEXT, color=INK)
    return figure, axes


def draw_interval(axes: Axes, estimate: Estimate, place: float, *, factor: float = 1, **how: Any) -> None:
    """Draws an interval, if it is known, times ``factor``. how: see ``Axes.plot``."""
    if estimate.low is not None and estimate.high is not None:
        axes.plot((factor * estimate.low, factor * estimate.high), (place, place), **how)


def write_beside(axes: Axes, place: float, text: str, colour: str) -> None:
    """Writes a text at the right of a row."""
    how: dict[str, Any] = {"verticalalignment": "center_baseline", "fontsize": TEXT - 1, "color": colour}
    axes.annotate(
        text, (1, place), xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points", **how
    )


def dots_figure(
    rows: Sequence[tuple[str, Estimate | None, str]], *, title: str, below: str, marked: float | None = None
) -> Figure:
    """Draws rows from the top: (name, estimate or None, text at the right). ``marked``: the x of a vertical line."""
    right = max(len(text) for _, _, text in rows) * LETTER + 12
    figure, axes = rows_sheet([name for name, _, _ in rows], title=title, below=below, right=right)
    for place, (_, found, text) in enumerate(rows):
        if found is not None:
            draw_interval(axes, found, place, color=SERIES[0], linewidth=2, alpha=0.45)
            axes.plot(found.values, [place] * len(found.values), color=SERIES[0], marker="|", linestyle="none")
            axes.plot(found.value, place, color=SERIES[0], marker="o", markersize=7, markeredgecolor=PAPER)
        write_beside(axes, place, text, MUTED)
    if marked is not None:
        axes.axvline(marked, color=MUTED, linewidth=1, linestyle=(0, (2, 3)), zorder=0)
    return figure
