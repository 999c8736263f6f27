"""Paired differences with their intervals, a line an encoding, against the reference's zero."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from posembed.lab.questions.accuracy import Difference
from posembed.report.accuracy_words import points
from posembed.report.drawing import (
    INK,
    LETTER,
    MARKERS,
    MUTED,
    PAPER,
    RULE,
    TEXT,
    WIDTH,
    Style,
    axes_at,
    new_figure,
)

LINE = 34
TOP, BOTTOM = 34, 48
ROOM = 56
"""At the right, for the differences as numbers."""


def difference_figure(differences: Mapping[str, Difference], drawn: Mapping[str, Style], reference: str) -> Figure:
    """The best above. Thick: the interval over seeds; thin: over the held-out documents."""
    best_first = sorted(differences, key=lambda name: -differences[name].over_seeds.mean)
    height = TOP + LINE * len(best_first) + BOTTOM
    figure = new_figure(height)
    left = max(len(name) for name in best_first) * LETTER + 16
    axes = axes_at(figure, left=left, top=TOP, width=WIDTH - left - ROOM, height=LINE * len(best_first))
    figure.text(0.005, 1 - 14 / height, f"accuracy less {reference}'s, in points of percent", fontsize=TEXT, color=INK)
    axes.axvline(0, color=MUTED, linewidth=1)
    for place, name in enumerate(best_first):
        style, difference = drawn[name], differences[name]
        for estimate, width, end in ((difference.over_documents, 1.2, "|"), (difference.over_seeds, 4.0, "")):
            if estimate.low is not None and estimate.high is not None:
                ends = (100 * estimate.low, 100 * estimate.high)
                axes.plot(
                    ends,
                    (place, place),
                    color=style.colour,
                    linewidth=width,
                    solid_capstyle="butt",
                    marker=end,
                    markersize=12,
                )
        mean = difference.over_seeds.mean
        axes.plot(
            100 * mean, place, color=style.colour, marker=MARKERS[style.index], markersize=7, markeredgecolor=PAPER
        )
        axes.text(
            1.03,
            place,
            points(mean),
            transform=axes.get_yaxis_transform(),
            color=style.colour,
            fontsize=TEXT,
            verticalalignment="center_baseline",
        )
    axes.set_ylim(len(best_first) - 0.5, -0.5)
    axes.set_yticks(range(len(best_first)), best_first, fontsize=TEXT, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.5), max(high, 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "\N{MINUS SIGN}") if value else "0")
    )
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_xlabel("worse ← → better", fontsize=TEXT, color=MUTED)
    return figure
