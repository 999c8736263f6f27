"""What all figures share: colours, sizes, axes, and SVG for pages in light and dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

# Found by search: any two differ by 27 or more (CIE76), also for viewers without red, green or blue cones (Machado et
# al. 2009), and each is dark enough for text on white. A dark page has its own colours (page.css): svg_for_page puts
# the names of its variables in place of these.
INK, MUTED, RULE, PAPER = "#1c1c1f", "#6b6b70", "#d9d9de", "#fffffe"
SERIES = ("#0340cb", "#711902", "#028753", "#c80d96", "#927209", "#3b3540")
VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
MARKERS = "os^Dvp"

WIDTH = 440
"""The width of every figure, in units of which text is 12 high. A phone shows about 0.8 pixels per unit."""
TEXT = 12
LETTER = 0.62 * TEXT
"""The width of a letter in a wide font, as on some readers' systems."""


@dataclass(frozen=True)
class Style:
    """How an encoding is drawn in every figure: its colour, its marker, and dashes if it has a window."""

    index: int
    dashed: bool
    baseline: bool = False
    """Grey and dotted."""

    @property
    def colour(self) -> str:
        return MUTED if self.baseline else SERIES[self.index]

    @property
    def line(self) -> str:
        return ":" if self.baseline else "--" if self.dashed else "-"


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Assigns styles to names. If there are more names than colours, those after the last colour are dashed too."""
    bases = list(dict.fromkeys(name.partition("+")[0] for name in names))
    drawn = {}
    for name in names:
        base, _, suffixes = name.partition("+")
        again, index = divmod(bases.index(base), len(SERIES))
        drawn[name] = Style(index, dashed=bool(suffixes) or again > 0)
    return drawn


def new_figure(height: float) -> Figure:
    """Returns a figure WIDTH wide. It is made without pyplot, which would keep it and might open a window."""
    return Figure(figsize=(WIDTH / 72, height / 72), facecolor="none")


def axes_at(figure: Figure, *, left: float, top: float, width: float, height: float) -> Axes:
    """Adds axes at a place in the figure's units, from its upper left corner, with two thin spines and muted ticks."""
    tall = figure.get_figheight() * 72
    axes = figure.add_axes((left / WIDTH, 1 - (top + height) / tall, width / WIDTH, height / tall))
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(which="both", color=RULE, labelcolor=MUTED, labelsize=TEXT - 1, length=3)
    axes.set_axisbelow(True)
    return axes


def lines_sheet(height: float, *, title: str, below: str, names: Sequence[str]) -> tuple[Figure, Axes]:
    """Returns a figure with one plot, a title above, and space at the right for names at the ends of lines."""
    figure = new_figure(height)
    room = max([len(name) for name in names], default=0) * LETTER + 24
    axes = axes_at(figure, left=40, top=34, width=WIDTH - 40 - room, height=height - 34 - 44)
    figure.text(0.005, 1 - 14 / height, title, fontsize=TEXT, color=INK)
    axes.set_xlabel(below, fontsize=TEXT, color=INK)
    return figure, axes


def tick_heights(axes: Axes) -> None:
    """Sets round ticks on a logarithmic y axis of any length."""
    low, high = axes.get_ylim()
    if high / low < 5:
        heights = [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    else:
        decades = math.log10(high / low)
        digits = (1, 2, 3, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
        every = max(1, round(decades / 8))
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        heights = [digit * 10.0**power for power in powers if power % every == 0 for digit in digits]
    fix_ticks(axes.yaxis, [height for height in heights if low <= height <= high])
    axes.grid(axis="y", color=RULE, linewidth=0.5)


def fix_ticks(axis: Axis, places: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(places))
    names = [f"{place:,.5g}" if place >= 0.001 or place <= 0 else f"{place:.0e}".replace("-0", "-") for place in places]
    axis.set_major_formatter(FixedFormatter(names))
    axis.set_minor_locator(NullLocator())


def svg_for_page(figure: Figure, *, name: str, described: str) -> str:
    """Returns a figure as an <svg> element with text as text and the page's colours; equal figures give equal text.

    ``name`` makes its ids unique on the page; ``described`` is the escaped text for screen readers.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing, dpi=144)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # matplotlib's names of parts, to which nothing refers
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
