"""The figures of a measurement of cost: the overhead of each encoding, and the growth of its time."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.cost.results import CostResult, CostRow
from posembed.report.drawing import INK, LETTER, MUTED, PAPER, RULE, SERIES, TEXT, WIDTH, axes_at, fix_ticks, new_figure
from posembed.report.line_chart import Line, line_chart
from posembed.report.questions.cost_words import cheapest_first, quoted_share
from posembed.statistics import Estimate

ALONE, ADDED = SERIES[0], SERIES[1]
ROW = 24
"""The height of one encoding's line."""
TOP, FOOT = 62, 42
LINEAR_TO = 1.0
"""Percent. The axis is linear up to here and logarithmic beyond, so that both .1% and 100% are readable."""


def overhead_figure(result: CostResult) -> Figure:
    """One line per encoding: its time alone and its overhead in the layer, relative to attention, with backward."""
    rows = cheapest_first(result)
    height = TOP + ROW * len(rows) + FOOT
    figure = new_figure(height)
    left = max(len(row.encoding) for row in rows) * LETTER + 14
    axes = axes_at(figure, left=left, top=TOP, width=WIDTH - left - 16, height=ROW * len(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.encoding for row in rows], fontsize=TEXT, color=INK, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=TEXT)
    _percent_axis(axes, rows)
    for place, row in enumerate(rows):
        axes.axhline(place, color=RULE, linewidth=0.5, zorder=0)
        _draw(axes, place - 0.14, row.alone_share.backward, ALONE, "o")
        _draw(axes, place + 0.14, row.overhead.backward, ADDED, "s")
        quoted = quoted_share(row.encoding)
        if quoted is not None:
            axes.plot(100 * quoted, place, marker="|", markersize=14, markeredgewidth=1.6, color=MUTED, zorder=2)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_xlabel("% of the time of an attention layer", fontsize=TEXT, color=INK)
    _key(figure, height, [("o", "alone", ALONE), ("s", "overhead in the layer", ADDED), ("|", "published", MUTED)])
    figure.text(0.005, 1 - 14 / height, "forward and backward (logarithmic from 1% on)", fontsize=TEXT, color=INK)
    return figure


def growth_figure(result: CostResult) -> Figure:
    """Milliseconds by length, both logarithmic: one line per encoding, a cross where it was stopped."""
    rows = [row for row in cheapest_first(result) if row.writes.all]
    times = {row.encoding: [1000 * seconds for seconds in row.growth.seconds] for row in rows}
    every = [time for found in times.values() for time in found]
    lengths = max((row.growth.lengths for row in rows), key=len)
    lines = [
        Line(
            row.encoding,
            {n: Estimate(time) for n, time in zip(row.growth.lengths, times[row.encoding], strict=True)},
            end=None if row.growth.stopped is None else max(row.growth.lengths),
        )
        for row in rows
    ]
    return line_chart(
        lines,
        names=[row.encoding for row in result.rows],
        title="milliseconds, alone, forward (log scale)",
        below="tokens (log scale)",
        ticks=lengths[:: -2 if len(lengths) > 4 else -1],
        logarithmic=(min(every) / 1.5, max(every) * 1.5),
        past_end="not tried past",
    )


def _percent_axis(axes: Axes, rows: Sequence[CostRow]) -> None:
    values = [0.0]
    for row in rows:
        for value in (row.alone_share.backward, row.overhead.backward):
            values += [100 * end for end in (value.value, value.low, value.high) if end is not None]
    low, high = min(values), max(*values, LINEAR_TO)
    axes.set_xscale("symlog", linthresh=LINEAR_TO, linscale=0.6)
    axes.set_xlim(low * 1.6 if low < -0.2 else -0.3, high * 1.6)
    ticks = [sign * tick for sign in (-1, 1) for tick in (1.0, 10.0, 100.0, 1000.0, 10_000.0)]
    fix_ticks(axes.xaxis, sorted([0.0, *(tick for tick in ticks if low * 1.6 <= tick <= high * 1.6)]))
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def _draw(axes: Axes, place: float, value: Estimate, colour: str, marker: str) -> None:
    if value.low is not None and value.high is not None:
        axes.plot((100 * value.low, 100 * value.high), (place, place), color=colour, linewidth=2.2, alpha=0.5)
    axes.plot(100 * value.value, place, marker=marker, markersize=6, color=colour, markeredgecolor=PAPER, zorder=3)


def _key(figure: Figure, height: float, entries: Sequence[tuple[str, str, str]]) -> None:
    axes = axes_at(figure, left=0, top=24, width=WIDTH, height=24)
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, 1)
    place = 6.0
    for marker, name, colour in entries:
        axes.plot(place, 0.5, marker=marker, markersize=7, color=colour, markeredgewidth=1.6 if marker == "|" else 0)
        axes.text(place + 9, 0.5, name, fontsize=TEXT, color=colour, verticalalignment="center_baseline")
        place += len(name) * LETTER + 34
