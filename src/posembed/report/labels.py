"""Names at the ends of lines, which need no legend."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from posembed.report.drawing import TEXT


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Returns the places nearest to those wanted (least squares) that keep their order and a gap between neighbours.

    They lie within low .. high if there is space for all.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[tuple[float, int]] = []  # (mean, count) of places that touch, each minus its rank * gap
    for rank, index in enumerate(order):
        mean, count = wanted[index] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    highest = max(high - (len(wanted) - 1) * gap, low)
    places = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        places[index] = min(max(means[rank], low), highest) + rank * gap
    return places


def label_line_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes names beside the plot, each joined to the end of its line: (last value, name, colour).

    The y axis must have its limits and scale. The names of lines that leave it stand at its top.
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
        if value <= top:
            axes.plot(
                (1.0, 1.03), (height, place), transform=axes.transAxes, color=colour, linewidth=0.8, clip_on=False
            )
        axes.text(
            1.045,
            place,
            name,
            transform=axes.transAxes,
            color=colour,
            fontsize=TEXT,
            verticalalignment="center_baseline",
            parse_math=False,
        )
