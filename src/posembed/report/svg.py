"""Figures as SVG for pages in light and dark."""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from posembed.plots.style import INK, MUTED, PAPER, RULE, SERIES

VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
"""The CSS variables that replace the colours: a dark page has its own colours (page.css)."""


def svg_for_page(figure: Figure, *, name: str, described: str) -> str:
    """Returns a figure as an <svg> element with selectable text and the page's colours. Equal figures give equal SVG.

    ``name`` makes its ids unique on the page; ``described`` is the escaped text for screen readers. The figure is
    enlarged to include what stands out of it, such as a minus sign at its left edge.
    """
    buffer = io.StringIO()
    whole = Bbox.union([Bbox.from_bounds(0, 0, *figure.get_size_inches()), figure.get_tightbbox().padded(2 / 72)])
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing, dpi=144, bbox_inches=whole)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # matplotlib's ids of parts, which nothing refers to
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
