"""The first figure: perplexity of the same tokens against the length of the context they are seen with."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.questions.lengths import LengthRow, LengthSummary
from posembed.report.drawing import (
    MARKERS,
    MUTED,
    PAPER,
    TEXT,
    Style,
    fix_ticks,
    lines_sheet,
    styles,
    tick_heights,
)
from posembed.report.labels import label_line_ends
from posembed.report.lengths.words import last_position
from posembed.report.words import listed, number

CUT = 4
"""The axis ends at this many times the lowest perplexity: a line that explodes is cut, and its name says where it
goes, so that those that hold can be told apart."""


def length_figure(summary: LengthSummary) -> Figure:
    """Same-token perplexity by tokens of context, both on logarithmic axes."""
    low, high = heights(summary)
    drawn = styles([row.encoding for row in summary.rows])
    ends = [
        (last, _name_at_end(row.encoding, last, high), drawn[row.encoding].colour)
        for row in summary.rows
        if row.seeds and last_position(row, summary) is None
        for last in _means(row)[-1:]
    ]
    figure, axes = lines_sheet(
        330,
        title="perplexity of the same tokens (log scale; lower is better)",
        below="tokens of context (log scale)",
        names=[name for _, name, _ in ends],
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    shortest, longest = min(*summary.test_lengths, summary.train_length), max(summary.test_lengths)
    margin = (longest / shortest) ** 0.04 if longest > shortest else 1.2
    axes.set_xlim(shortest / margin, longest * margin)
    tick_heights(axes)
    fix_ticks(axes.xaxis, summary.test_lengths)
    _mark_training_length(axes, summary.train_length)
    for row in summary.rows:
        _draw_row(axes, row, drawn[row.encoding], ended=last_position(row, summary) is not None)
    label_line_ends(axes, ends)
    _say_who_ends(axes, summary, drawn)
    return figure


def is_cut(summary: LengthSummary) -> float | None:
    """Where the axis ends, if some line goes on above it."""
    high = heights(summary)[1]
    return high if any(not mean <= high for row in summary.rows for mean in _means(row)) else None


def heights(summary: LengthSummary) -> tuple[float, float]:
    """The ends of the axis: around all means, a factor of 1.3 at least, cut at about CUT times the lowest."""
    there = [mean for row in summary.rows for mean in _means(row) if math.isfinite(mean)] or [1.0]
    lowest = min(there)
    highest = min(max(*there, 1.3 * lowest), CUT * lowest)
    room = (highest / lowest) ** 0.08
    top = highest * room if highest < CUT * lowest else float(f"{highest:.2g}")
    ends = {last_position(row, summary) for row in summary.rows} - {None}
    return lowest / room ** (1 + len(ends)), top  # below is room for who ends


def _means(row: LengthRow) -> list[float]:
    return [value.mean for value in row.same_tokens.values() if value is not None]


def _name_at_end(encoding: str, last: float, high: float) -> str:
    return encoding if last <= high else f"{encoding} ↑ {number(last)}"


def _mark_training_length(axes: Axes, length: int) -> None:
    axes.axvline(length, color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
    axes.annotate(
        "training length",
        (length, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -3),
        textcoords="offset points",
        fontsize=TEXT - 1,
        color=MUTED,
        verticalalignment="top",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def _draw_row(axes: Axes, row: LengthRow, style: Style, *, ended: bool) -> None:
    there = {length: value for length, value in row.same_tokens.items() if value is not None}
    means = [value.mean if math.isfinite(value.mean) else math.nan for value in there.values()]
    axes.plot(
        list(there),
        means,
        color=style.colour,
        linestyle=style.line,
        linewidth=1.8,
        marker=MARKERS[style.index],
        markersize=5,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )
    if ended and there:
        axes.plot(
            list(there)[-1],
            means[-1],
            color=style.colour,
            marker="X",
            markersize=10,
            markeredgecolor=PAPER,
            zorder=4,
        )
    bands = [
        (length, value.low, value.high)
        for length, value in there.items()
        if value.low is not None and value.high is not None and math.isfinite(value.high)
    ]
    if bands:
        lengths, lows, highs = zip(*bands, strict=True)
        axes.fill_between(lengths, lows, highs, color=style.colour, alpha=0.1, linewidth=0)


def _say_who_ends(axes: Axes, summary: LengthSummary, drawn: dict[str, Style]) -> None:
    """At the foot of the plot, where no line runs."""
    by_end: dict[int, list[str]] = {}
    for row in summary.rows:
        end = last_position(row, summary)
        if end is not None:
            by_end.setdefault(end, []).append(row.encoding)
    for line, (end, names) in enumerate(by_end.items()):
        axes.annotate(
            f"✕ {listed(names)}: no position past {end:,}",
            (end, 0.03 + 0.07 * line),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=TEXT,
            color=drawn[names[0]].colour,
            parse_math=False,
        )
