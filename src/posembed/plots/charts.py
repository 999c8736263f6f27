"""Charts of estimates with their 95% intervals: lines by size, and one row per name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from posembed.plots.canvas import room_for, sheet
from posembed.plots.style import (
    DOTS,
    INK,
    LETTER,
    MARKERS,
    MUTED,
    PAPER,
    RULE,
    SERIES,
    TEXT,
    Style,
    styles,
)
from posembed.plots.ticks import fix_ticks, label_line_ends, tick_heights, tick_text
from posembed.statistics import Estimate
from posembed.words import number

FAR_APART = 100
"""Dots whose ratio is larger than this are on a logarithmic axis."""


@dataclass(frozen=True)
class Line:
    """The estimates of one name at each x."""

    name: str
    points: Mapping[int, Estimate]
    end: int | None = None
    """The x at which the line ends, if it ends before the others."""

    @classmethod
    def of(cls, name: str, values: Mapping[int, Estimate | None], end: int | None = None) -> Line:
        """Returns a line through the values that are not None."""
        return cls(name, {x: value for x, value in values.items() if value is not None}, end)


def ended_at(values: Mapping[int, object], trained: int) -> int | None:
    """Returns the last size that an encoding has positions for, or None if it has positions at all tested sizes.

    values: the measured value by size; None at sizes without positions. trained: the training size, which always has
    positions.
    """
    there = [size for size, value in values.items() if value is not None]
    return max([trained, *there]) if values and max(values) not in there else None


def line_chart(lines: Sequence[Line], *, title: str, below: str, **how: Any) -> Figure:
    """Returns a figure with the lines, a title above them and the name of the x axis below. how: see ``draw_chart``."""
    names = end_names(lines, how.get("logarithmic"))
    figure, axes = sheet(252, title=title, below=below, right=room_for(names.values()))
    draw_chart(axes, lines, **how)
    return figure


def end_names(lines: Sequence[Line], logarithmic: tuple[float, float] | None) -> dict[str, str]:
    """Returns the texts at the ends of lines, by name: the name, with the last x of a line that ends before the others,
    or the last value of a line that leaves the axes."""
    factor, top = (1.0, logarithmic[1]) if logarithmic else (100.0, math.inf)
    found = {}
    for line in lines:
        if line.points or line.end is not None:
            last = factor * list(line.points.values())[-1].value if line.points else 0.0
            more = f" ✕ {line.end:,}" if line.end is not None else "" if last <= top else f" ↑ {number(last)}"
            found[line.name] = f"{line.name}{more}"
    return found


def draw_chart(
    axes: Axes,
    lines: Sequence[Line],
    *,
    names: Sequence[str],
    ticks: Sequence[int],
    trained: int | None = None,
    logarithmic: tuple[float, float] | None = None,
    baselines: Sequence[str] = (),
) -> None:
    """Draws the lines, with their names at their ends.

    names: all names that are compared, so that a name has the same colour in every figure. trained: the x of
    training, marked by a dotted line. logarithmic: the lowest and highest y of logarithmic axes; None means shares, in
    percent. baselines: names to draw grey and dotted.
    """
    drawn, factor = styles(names), 1.0 if logarithmic else 100.0
    drawn |= dict.fromkeys(baselines, Style(0, dashed=False, baseline=True))
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(*logarithmic)
        every = {*ticks, *(x for line in lines for x in line.points)} | ({trained} if trained is not None else set())
        shortest, longest = min(every), max(every)
        if shortest > 0:  # positions start at 0
            axes.set_xscale("log", base=2)
            margin = (longest / shortest) ** 0.04 if longest > shortest else 1.2
            axes.set_xlim(shortest / margin, longest * margin)
        tick_heights(axes)
    else:
        axes.set_xlim(0.95 * min(ticks), max(ticks) * 1.03)
        axes.grid(axis="y", color=RULE, linewidth=0.5)
    fix_ticks(axes.xaxis, ticks if logarithmic else _apart(ticks), exact=True)
    for line in lines:
        if line.points:
            _draw(axes, line, drawn[line.name], factor)
    if not logarithmic:
        lowest = max(axes.get_ylim()[0], -4)
        axes.set_ylim(lowest, 104)
        axes.set_yticks([tick for tick in axes.get_yticks() if lowest <= tick <= 100])
    if trained is not None:
        axes.axvline(trained, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
        how: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate("trained", (trained, 1.0), xytext=(0, 3), fontsize=TEXT - 1, color=MUTED, **how)
    lowest = axes.get_ylim()[0]
    last = {line.name: factor * list(line.points.values())[-1].value if line.points else lowest for line in lines}
    texts = end_names(lines, logarithmic)
    label_line_ends(axes, [(last[name], text, drawn[name].colour) for name, text in texts.items()])


def _draw(axes: Axes, line: Line, style: Style, factor: float) -> None:
    means = [factor * e.value if math.isfinite(e.value) else math.nan for e in line.points.values()]
    how: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "linewidth": 1.8}
    markers: dict[str, Any] = {"marker": MARKERS[style.index], "markersize": 5, "markeredgewidth": 0.8}
    axes.plot(list(line.points), means, markeredgecolor=PAPER, **how, **markers)
    if line.end is not None:
        last = list(line.points)[-1]
        axes.plot(last, means[-1], color=style.colour, marker="X", markersize=10, markeredgecolor=PAPER, zorder=4)
    highest = math.inf if factor == 1 else factor
    bands = [
        (x, max(factor * e.low, 0), min(factor * e.high, highest))
        for x, e in line.points.items()
        if e.low is not None and e.high is not None and math.isfinite(e.high)
    ]
    if bands:
        sizes, lows, highs = zip(*bands, strict=True)
        axes.fill_between(sizes, lows, highs, color=style.colour, alpha=0.1, linewidth=0)


def _apart(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes in descending order, without those whose labels would touch."""
    apart: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not apart or apart[-1] - size >= 0.06 * apart[0]:
            apart.append(size)
    return apart


def rows_sheet(
    names: Sequence[str], *, title: str, below: str, each: float = 30, right: float = 16
) -> tuple[Figure, Axes]:
    """Returns a figure with one row per name, from the top. Row i is at y = i and ``each`` high. Names can have several
    lines."""
    left = max(len(line) for name in names for line in name.split("\n")) * LETTER + 14
    each = max(each, 8 + 15 * max(name.count("\n") + 1 for name in names))
    figure, axes = sheet(each * len(names), title=title, below=below, left=left, right=right, top=40)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=TEXT, color=INK, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=TEXT)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    return figure, axes


def draw_interval(axes: Axes, estimate: Estimate, row: float, *, factor: float = 1, **how: Any) -> None:
    """Draws an interval, multiplied by ``factor``, if it is known."""
    if estimate.low is not None and estimate.high is not None:
        axes.plot((factor * estimate.low, factor * estimate.high), (row, row), **how)


def write_right(axes: Axes, row: float, text: str, colour: str) -> None:
    how: dict[str, Any] = {"verticalalignment": "center_baseline", "fontsize": TEXT - 1, "color": colour}
    axes.annotate(text, (1, row), xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points", **how)


def dots_figure(
    rows: Sequence[tuple[str, Estimate | None, str]], *, title: str, below: str, marked: float | None = None
) -> Figure:
    """Draws rows from the top, each (name, estimate or None, text at the right). marked: the x of a vertical line."""
    right = max(len(text) for _, _, text in rows) * LETTER + 12
    figure, axes = rows_sheet([name for name, _, _ in rows], title=title, below=below, right=right)
    for row, (_, found, text) in enumerate(rows):
        if found is not None:
            draw_interval(axes, found, row, color=SERIES[0], linewidth=2, alpha=0.45)
            axes.plot(found.values, [row] * len(found.values), color=SERIES[0], marker="|", linestyle="none")
            axes.plot(found.value, row, color=SERIES[0], marker="o", markersize=7, markeredgecolor=PAPER)
        write_right(axes, row, text, MUTED)
    means = [found.value for _, found, _ in rows if found is not None]
    if means and max(means) > FAR_APART * min(means) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(tick_text)
        axes.xaxis.set_minor_locator(NullLocator())
    if marked is not None:
        axes.axvline(marked, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
    return figure
