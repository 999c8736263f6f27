"""Helpers of all figures: colours, sizes, axes, names at the ends of lines, and SVG for light and dark pages."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

if TYPE_CHECKING:
    from torch import Tensor

# Found by search: any two differ by at least 27 (CIE76), also for viewers without red, green or blue cones (Machado et
# al. 2009), and each is dark enough for text on white. A dark page has its own colours (page.css), so svg_for_page
# replaces these by CSS variables.
INK, MUTED, RULE, PAPER = "#1c1c1f", "#6b6b70", "#d9d9de", "#fffffe"
SERIES = ("#0340cb", "#711902", "#028753", "#c80d96", "#927209", "#3b3540")
VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
MARKERS = "os^Dvp"

WIDTH = 440
"""The width of every figure, in points (text is 12 high). A phone shows about 0.8 pixels per point."""
TEXT = 12
LETTER = 0.62 * TEXT
"""The width of a letter in a wide font, which some readers' systems use."""


@dataclass(frozen=True)
class Style:
    """The style of an encoding in every figure: its colour, its marker, and dashes if it has a window."""

    index: int
    dashed: bool
    baseline: bool = False
    """Whether to draw it grey and dotted."""

    @property
    def colour(self) -> str:
        return MUTED if self.baseline else SERIES[self.index]

    @property
    def line(self) -> str:
        return ":" if self.baseline else "--" if self.dashed else "-"


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Assigns styles to names. If there are more names than colours, the colours repeat with dashes."""
    bases = list(dict.fromkeys(name.partition("+")[0] for name in names))
    drawn = {}
    for name in names:
        base, _, suffixes = name.partition("+")
        again, index = divmod(bases.index(base), len(SERIES))
        drawn[name] = Style(index, dashed=bool(suffixes) or again > 0)
    return drawn


def new_figure(height: float) -> Figure:
    """Returns a figure WIDTH wide. It does not use pyplot, which would keep the figure and might open a window."""
    return Figure(figsize=(WIDTH / 72, height / 72), facecolor="none")


def axes_at(
    figure: Figure,
    *,
    left: float,
    top: float,
    width: float,
    height: float,
    title: str = "",
    x: str = "",
    y: str = "",
    grid: Literal["x", "y", ""] = "",
) -> Axes:
    """Adds axes with two thin spines and muted ticks. Positions are in points from the figure's upper left corner.

    title: the text above. x, y: names of the axes. grid: the axis whose ticks get lines.
    """
    tall = figure.get_figheight() * 72
    axes = figure.add_axes((left / WIDTH, 1 - (top + height) / tall, width / WIDTH, height / tall))
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(which="both", color=RULE, labelcolor=MUTED, labelsize=TEXT - 1, length=3)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=TEXT - 1, color=MUTED, pad=5, parse_math=False)
    axes.set_xlabel(x, fontsize=TEXT - 1, color=MUTED)
    axes.set_ylabel(y, fontsize=TEXT - 1, color=MUTED)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.5)
    return axes


def heat_map(
    figure: Figure,
    values: Tensor,
    largest: float,
    *,
    extent: tuple[float, float, float, float] | None = None,
    ticks: int = 4,
    **where: Any,
) -> Axes:
    """Draws values (H, W) as colours: blue below zero, white at zero, red above.

    largest: the value of the strongest red. extent: the values of the axes at (left, right, bottom, top). ticks: the
    most ticks per axis. where: see ``axes_at``.
    """
    axes = axes_at(figure, **where)
    colours: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    axes.imshow(values.float().numpy(), aspect="auto", interpolation="nearest", extent=extent, **colours)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(ticks, integer=True) if ticks else NullLocator())
    return axes


def key_above(axes: Axes, **how: Any) -> None:
    """Writes a legend above the right end of the axes, in the colours of the lines. how: see ``Axes.legend``."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "borderaxespad": 0}
    axes.legend(frameon=False, labelcolor="linecolor", handlelength=1.2, **place, **{"fontsize": TEXT - 1, **how})


def heading(figure: Figure, text: str, *, left: float = 2, top: float = 0) -> None:
    """Writes a line of text, such as a title, at a position in points."""
    tall = figure.get_figheight() * 72
    figure.text(left / WIDTH, 1 - (top + 14) / tall, text, fontsize=TEXT, color=INK, parse_math=False)


def sheet(
    height: float, *, title: str, below: str, right: float, left: float = 40, top: float = 34
) -> tuple[Figure, Axes]:
    """Returns a figure with one plot of this height, a title above it and the name of its x axis below."""
    figure = new_figure(top + height + 46)
    axes = axes_at(figure, left=left, top=top, width=WIDTH - left - right, height=height)
    heading(figure, title)
    axes.set_xlabel(below, fontsize=TEXT, color=INK)
    return figure, axes


def room_for(names: Iterable[str]) -> float:
    return max(map(len, names), default=0) * LETTER + 24


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


def fix_ticks(axis: Axis, places: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(places))
    names = [f"{place:,.5g}" if place >= 0.001 or place <= 0 else f"{place:.0e}".replace("-0", "-") for place in places]
    axis.set_major_formatter(FixedFormatter(names))
    axis.set_minor_locator(NullLocator())


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Moves positions as little as possible (least squares) so that neighbours keep their order and a gap.

    They lie within low .. high if there is space for all.
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


def label_line_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes names beside the plot, each joined to the end of its line.

    ends: (last value, name, colour) of each line. The limits and scale of the y axis must be set. The names of lines
    that leave the plot stand at its top.
    """
    ends = sorted(ends, key=lambda end: end[0] if end[0] < math.inf else math.inf)
    figure = axes.get_figure(root=True)
    assert figure is not None
    to_axes = axes.transData + axes.transAxes.inverted()
    top, right = axes.get_ylim()[1], axes.get_xlim()[1]
    heights = [to_axes.transform((right, value if value < top else top))[1] for value, _, _ in ends]
    units = axes.get_position().height * figure.get_figheight() * 72
    places = spread(heights, gap=(TEXT + 2) / units, low=0.02, high=1.0)
    for (value, name, colour), height, place in zip(ends, heights, places, strict=True):
        how: dict[str, Any] = {"transform": axes.transAxes, "color": colour}
        if value <= top:
            axes.plot((1.0, 1.03), (height, place), linewidth=0.8, clip_on=False, **how)
        axes.text(1.045, place, name, fontsize=TEXT, verticalalignment="center_baseline", parse_math=False, **how)


def svg_for_page(figure: Figure, *, name: str, described: str) -> str:
    """Returns a figure as an <svg> element with selectable text and the page's colours. Equal figures give equal SVG.

    ``name`` makes its ids unique on the page; ``described`` is the escaped text for screen readers.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing, dpi=144)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # matplotlib's ids of parts, which nothing refers to
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
