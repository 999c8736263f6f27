"""Ticks of axes, and names at the ends of lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

from posembed.plots.style import MINUS, RULE, TEXT, shortened


def tick_heights(axes: Axes) -> None:
    """Sets round ticks on a logarithmic y axis of any range."""
    low, high = axes.get_ylim()
    if high / low < 5:
        heights = [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    else:
        decades = math.log10(high / low)
        digits = (1, 2, 3, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
        heights = [float(tick) for tick in LogLocator(subs=digits, numticks=9).tick_values(low, high)]
    fix_ticks(axes.yaxis, [height for height in heights if low <= height <= high])
    axes.grid(axis="y", color=RULE, linewidth=0.5)


def tick_text(place: float, _: object = None) -> str:
    """Formats the value of a tick: 0.25, −1,500, 2e−6."""
    text = f"{place + 0.0:,.6g}" if abs(place) >= 0.001 or not place else f"{place:.2e}"
    return re.sub(r"(?:\.0+|(\.\d)0)?e([+-])0*", r"\1e\2", text).replace("e+", "e").replace("-", MINUS)


def fix_ticks(axis: Axis, places: Sequence[float], *, exact: bool = False) -> None:
    """Puts ticks at these values. exact: write all digits of whole numbers, instead of six significant digits."""

    def name(place: float) -> str:
        return f"{place:,.0f}" if exact and float(place).is_integer() else tick_text(place)

    axis.set_major_locator(FixedLocator(places))
    axis.set_major_formatter(FixedFormatter([name(place) for place in places]))
    axis.set_minor_locator(NullLocator())


def whole_numbers(axis: Axis, most: int) -> None:
    """Puts at most about ``most`` ticks on an axis, on whole numbers."""
    axis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Moves positions as little as possible (least squares) so that neighbours keep their order and a gap.

    The results lie within low .. high if there is space for all.
    """
    from scipy.optimize import isotonic_regression  # takes half a second

    if not wanted:
        return []
    order = np.argsort(wanted, kind="stable")
    gaps = gap * np.arange(len(wanted))
    nearest = isotonic_regression(np.asarray(wanted)[order] - gaps).x
    places = np.empty(len(wanted))
    places[order] = np.clip(nearest, low, max(high - gaps[-1], low)) + gaps
    return list(map(float, places))


def room_for_lines(names: int) -> float:
    """Returns the height, in points, of a plot with this many names beside it."""
    return (TEXT + 2) * (names - 1) / 0.98


def label_line_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes names beside the plot, each joined to the end of its line.

    ends: (last value, name, colour) of each line. The limits of the y axis are then fixed. The names of lines that
    leave the plot stand at its top. If the plot is lower than ``room_for_lines``, the names get smaller.
    """
    ends = sorted(ends, key=lambda end: end[0] if end[0] < math.inf else math.inf)
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.set_ylim(*axes.get_ylim())
    to_axes = axes.transData + axes.transAxes.inverted()
    top, right = axes.get_ylim()[1], axes.get_xlim()[1]
    heights = [to_axes.transform((right, value if value < top else top))[1] for value, _, _ in ends]
    units = axes.get_position().height * figure.get_figheight() * 72
    gap = min(TEXT + 2, 0.98 * units / max(len(ends) - 1, 1))  # smaller letters, if there are more names than lines fit
    places = spread(heights, gap=gap / units, low=0.02, high=1.0)
    for (value, name, colour), height, place in zip(ends, heights, places, strict=True):
        how: dict[str, Any] = {"transform": axes.transAxes, "color": colour}
        if value <= top:
            axes.plot((1.0, 1.03), (height, place), linewidth=0.8, clip_on=False, **how)
        how |= {"fontsize": max(gap - 2, 1), "verticalalignment": "center_baseline", "parse_math": False}
        axes.text(1.045, place, shortened(name), **how)
