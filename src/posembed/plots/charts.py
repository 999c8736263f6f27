"""Charts of estimates with their 95% intervals: lines by size, and one row per name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posembed.plots.canvas import room_for, sheet, wrapped
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
    WIDTH,
    Style,
    styles,
)
from posembed.plots.ticks import fix_ticks, label_line_ends, tick_heights
from posembed.statistics import Estimate
from posembed.words import listed, number

FAR_APART = 100
"""Dots whose ratio is larger than this are on a logarithmic axis."""
ROOM = 0.07
"""The distance to keep between a text in the plot and every line, as a share of the height."""


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
    return max([trained, *there]) if len(there) < len(values) else None


def line_chart(lines: Sequence[Line], *, title: str, below: str, **how: Any) -> Figure:
    """Returns a figure with the lines, a title above them and the name of the x axis below. how: see ``draw_chart``."""
    names = end_names(lines, how.get("logarithmic"))
    figure, axes = sheet(252, title=title, below=below, right=room_for(names.values()))
    draw_chart(axes, lines, **how)
    return figure


def end_names(lines: Sequence[Line], logarithmic: tuple[float, float] | None) -> dict[str, str]:
    """Returns what stands at the ends of lines: names, with the last value of a line that leaves the axes."""
    factor, top = (1.0, logarithmic[1]) if logarithmic else (100.0, math.inf)
    found = {}
    for line in lines:
        if line.points and line.end is None:
            last = factor * list(line.points.values())[-1].value
            text = line.name if last <= top else f"{line.name} ↑ {number(last)}"
            found[line.name] = text
    return found


def draw_chart(
    axes: Axes,
    lines: Sequence[Line],
    *,
    names: Sequence[str],
    ticks: Sequence[int],
    trained: int | None = None,
    logarithmic: tuple[float, float] | None = None,
    target: float | None = None,
    past_end: str = "no position past",
    baselines: Sequence[str] = (),
) -> None:
    """Draws the lines, with their names at their ends.

    names: all names that are compared, so that a name has the same colour in every figure. trained: the x of
    training, marked by a dotted line. logarithmic: the lowest and highest y of logarithmic axes; None means shares, in
    percent. target: a share marked by a horizontal line. past_end: the words before the x in the note on a line that
    ends early. baselines: names to draw grey and dotted.
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
        axes.set_ylim(max(axes.get_ylim()[0], -4), 104)
    _name_ends(axes, lines, drawn, text=past_end)
    if trained is not None:
        axes.axvline(trained, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
        _note(axes, (trained, 1.0), "trained", offset=(0, 3), fontsize=TEXT - 1, color=MUTED)
    if target is not None:
        axes.axhline(factor * target, color=MUTED, linewidth=0.8, linestyle=DOTS)
    last = {line.name: factor * list(line.points.values())[-1].value for line in lines if line.points}
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


def _note(axes: Axes, place: tuple[float, float], text: str, *, offset: tuple[float, float], **how: Any) -> None:
    """Writes a text near (x, share of the height)."""
    coordinates: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, place, xytext=offset, parse_math=False, **coordinates, **how)


def _name_ends(axes: Axes, lines: Sequence[Line], drawn: Mapping[str, Style], *, text: str) -> None:
    """Writes a note at each end of a line, as low as the lines allow."""
    taken: list[float] = []
    for end in dict.fromkeys(line.end for line in lines):
        if end is None:
            continue
        names = [line.name for line in lines if line.end == end]
        width = WIDTH * axes.get_position().width
        note = wrapped(f"✕ {listed(names)}: {text} {end:,}", width)
        letters = max(map(len, note.split("\n")))
        how: dict[str, Any] = {"color": drawn[names[0]].colour, "verticalalignment": "center_baseline"}
        left = width * _across(axes, end)
        if left + 8 + letters * LETTER <= width:
            taken.append(_free_height(axes, left / width, letters, taken))
            _note(axes, (end, taken[-1]), note, offset=(8, 0), fontsize=TEXT, **how)
        else:  # it ends with the axes
            taken.append(_free_height(axes, max(1 - letters * LETTER / width, 0.0), letters, taken))
            _note(axes, (axes.get_xlim()[1], taken[-1]), note, offset=(0, 0), fontsize=TEXT, ha="right", **how)


def _across(axes: Axes, x: float) -> float:
    """Returns an x as a share of the width of the axes."""
    to_axes = axes.transData + axes.transAxes.inverted()
    return float(to_axes.transform((x, axes.get_ylim()[0]))[0])


def _free_height(axes: Axes, left: float, letters: int, taken: Sequence[float]) -> float:
    """Returns the lowest height at which so many letters to the right of ``left`` meet no line, as a share of the axes.

    If every height meets a line, returns the one farthest from all lines.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    across = np.linspace(left, left + letters * LETTER / (WIDTH * axes.get_position().width), 30)
    runs = [np.array(taken)]
    for line in axes.get_lines():
        points = to_axes.transform(np.asarray(line.get_xydata()))
        runs.append(np.interp(across, points[:, 0], points[:, 1], left=math.nan, right=math.nan))
    occupied = np.concatenate(runs)
    occupied = occupied[np.isfinite(occupied)]
    heights = np.linspace(0.04, 0.9, 44)
    gaps = [min(abs(occupied - height), default=1.0) for height in heights]
    return float(heights[int(np.argmax(np.minimum(gaps, ROOM)))])


def _apart(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes in descending order, without those whose labels would touch."""
    apart: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not apart or apart[-1] - size >= 0.06 * apart[0]:
            apart.append(size)
    return apart


def rows_sheet(
    names: Sequence[str], *, title: str, below: str, each: float = 30, top: float = 40, right: float = 16
) -> tuple[Figure, Axes]:
    """Returns a figure with one row per name, from the top. Row i is at y = i and ``each`` high. Names can have several
    lines."""
    left = max(len(line) for name in names for line in name.split("\n")) * LETTER + 14
    each = max(each, 8 + 15 * max(name.count("\n") + 1 for name in names))
    figure, axes = sheet(each * len(names), title=title, below=below, left=left, right=right, top=top)
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
    if marked is not None:
        axes.axvline(marked, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
    return figure
