"""A line chart of estimates: one line per name, its 95% band, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.report.drawing import (
    LETTER,
    MARKERS,
    MUTED,
    PAPER,
    RULE,
    TEXT,
    WIDTH,
    Style,
    fix_ticks,
    lines_sheet,
    styles,
    tick_heights,
)
from posembed.report.labels import label_line_ends
from posembed.report.words import listed, number
from posembed.statistics import Estimate

LONGEST = 28
"""Letters of a name at the end of a line; a longer one, such as a path, loses its beginning."""
ROOM = 0.07
"""How far a text in the plot should be from every line, as a share of the height."""


@dataclass(frozen=True)
class Line:
    """One name's estimates by x."""

    name: str
    points: Mapping[int, Estimate]
    end: int | None = None
    """The x at which the line ends, if that is before the others."""

    @classmethod
    def of(cls, name: str, values: Mapping[int, Estimate | None], end: int | None = None) -> Line:
        """Returns a line through the values that are not None."""
        return cls(name, {x: value for x, value in values.items() if value is not None}, end)


def line_chart(
    lines: Sequence[Line],
    *,
    names: Sequence[str],
    title: str,
    below: str,
    ticks: Sequence[int],
    trained: int | None = None,
    logarithmic: tuple[float, float] | None = None,
    target: float | None = None,
    shade_trained: bool = False,
    past_end: str = "no position past",
    baselines: Sequence[str] = (),
) -> Figure:
    """Draws the lines.

    Args:
        names: everything that the page compares, so that a name has the same colour in every figure.
        trained: the x of training, marked by a dotted line, or by a shade from 0 up to it; None marks nothing.
        logarithmic: the lowest and highest y of logarithmic axes; None means shares, drawn as percent.
        target: a share marked by a horizontal line.
        past_end: what it writes next to lines with an end, before the x. baselines: names to draw grey and dotted.
    """
    drawn, factor = styles(names), 1.0 if logarithmic else 100.0
    drawn |= dict.fromkeys(baselines, Style(0, dashed=False, baseline=True))
    last = {line.name: factor * list(line.points.values())[-1].value for line in lines if line.points}
    whole = [line for line in lines if line.points and line.end is None]
    top = logarithmic[1] if logarithmic else math.inf
    ends = [
        (last[line.name], line.name if last[line.name] <= top else f"{line.name} ↑ {number(last[line.name])}", line)
        for line in whole
    ]
    ends = [(value, text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}", line) for value, text, line in ends]
    figure, axes = lines_sheet(330, title=title, below=below, names=[text for _, text, _ in ends])
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(*logarithmic)
        every = {*ticks, *(x for line in lines for x in line.points)} | ({trained} if trained is not None else set())
        shortest, longest = min(every), max(every)
        margin = (longest / shortest) ** 0.04 if longest > shortest else 1.2
        axes.set_xlim(shortest / margin, longest * margin)
        tick_heights(axes)
    else:
        axes.set_xlim(0 if shade_trained else 0.95 * min(ticks), max(ticks) * 1.03)
        axes.grid(axis="y", color=RULE, linewidth=0.5)
    fix_ticks(axes.xaxis, ticks if logarithmic else _apart(ticks))
    for line in lines:
        if line.points:
            _draw(axes, line, drawn[line.name], factor)
    if not logarithmic:
        axes.set_ylim(max(axes.get_ylim()[0], -4), 104)
    _name_ends(axes, lines, drawn, text=past_end)
    if trained is not None:
        _mark_trained(axes, trained, shade=shade_trained)
    if target is not None:
        axes.axhline(factor * target, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    label_line_ends(axes, [(value, text, drawn[line.name].colour) for value, text, line in ends])
    return figure


def _draw(axes: Axes, line: Line, style: Style, factor: float) -> None:
    means = [factor * e.value if math.isfinite(e.value) else math.nan for e in line.points.values()]
    axes.plot(
        list(line.points),
        means,
        color=style.colour,
        linestyle=style.line,
        linewidth=1.8,
        marker=MARKERS[style.index],
        markersize=5,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )
    if line.end is not None:
        end = (list(line.points)[-1], means[-1])
        axes.plot(*end, color=style.colour, marker="X", markersize=10, markeredgecolor=PAPER, zorder=4)
    bands = [
        (x, factor * e.low, factor * e.high)
        if factor == 1
        else (x, max(factor * e.low, 0), min(factor * e.high, factor))
        for x, e in line.points.items()
        if e.low is not None and e.high is not None and math.isfinite(e.high)
    ]
    if bands:
        at, lows, highs = zip(*bands, strict=True)
        axes.fill_between(at, lows, highs, color=style.colour, alpha=0.1, linewidth=0)


def _mark_trained(axes: Axes, trained: int, *, shade: bool) -> None:
    if shade:
        axes.axvspan(0, trained, color=RULE, alpha=0.45, linewidth=0)
    else:
        axes.axvline(trained, color=MUTED, linewidth=1, linestyle=(0, (2, 3)), zorder=0)
    axes.annotate(
        "trained",
        (trained / 2 if shade else trained, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=TEXT - 1,
        color=MUTED,
        horizontalalignment="center" if shade else "left",
    )


def _name_ends(axes: Axes, lines: Sequence[Line], drawn: Mapping[str, Style], *, text: str) -> None:
    """Writes which encodings end where, as low as the lines leave room."""
    by_end: dict[int, list[str]] = {}
    for line in lines:
        if line.end is not None:
            by_end.setdefault(line.end, []).append(line.name)
    taken: list[float] = []
    for end, names in by_end.items():
        note = f"✕ {listed(names)}: {text} {end:,}"
        taken.append(_free_height(axes, end, note, taken))
        axes.annotate(
            note,
            (end, taken[-1]),
            xycoords=("data", "axes fraction"),
            xytext=(8, 0),
            textcoords="offset points",
            fontsize=TEXT,
            color=drawn[names[0]].colour,
            parse_math=False,
            verticalalignment="center_baseline",
        )


def _free_height(axes: Axes, start: int, text: str, taken: Sequence[float]) -> float:
    """Returns the lowest height, as a share of the axes, at which a text to the right of ``start`` meets no line; if
    there is none, the one farthest from all lines."""
    to_axes = axes.transData + axes.transAxes.inverted()
    left = to_axes.transform((start, axes.get_ylim()[0]))[0]
    across = np.linspace(left, left + len(text) * LETTER / (WIDTH * axes.get_position().width), 30)
    runs = [np.array(taken)]
    for line in axes.get_lines():
        places = to_axes.transform(np.asarray(line.get_xydata()))
        runs.append(np.interp(across, places[:, 0], places[:, 1], left=math.nan, right=math.nan))
    there = np.concatenate(runs)
    there = there[np.isfinite(there)]
    heights = np.linspace(0.04, 0.9, 44)
    gaps = [min(abs(there - height), default=1.0) for height in heights]
    return float(heights[int(np.argmax(np.minimum(gaps, ROOM)))])


def _apart(places: Sequence[int]) -> list[int]:
    """Returns the places from the largest down, without those whose numbers would touch."""
    apart: list[int] = []
    for place in sorted(places, reverse=True):
        if not apart or apart[-1] - place >= 0.06 * apart[0]:
            apart.append(place)
    return apart
