"""The first figure: exact match against the size of the problem, the sizes trained on shaded."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.questions.algorithms import SOLVED, AlgorithmRow, AlgorithmSummary
from posembed.report.algorithms.words import ends_at
from posembed.report.drawing import MARKERS, MUTED, PAPER, RULE, TEXT, Style, fix_ticks, lines_sheet, styles
from posembed.report.labels import label_line_ends


def algorithm_figure(summary: AlgorithmSummary) -> Figure:
    """Percent of problems solved, by size; a cross where an encoding has no position for the next size."""
    drawn = styles([row.encoding for row in summary.rows])
    there = [row for row in summary.rows if row.seeds and _points(row)]
    whole = [row for row in there if ends_at(row, summary) is None]
    figure, axes = lines_sheet(
        330,
        title="problems answered without a mistake, percent",
        below=f"size of the problem, in {summary.unit}",
        names=[row.encoding for row in whole],
    )
    axes.set_ylim(-4, 104)
    axes.set_xlim(0, max(summary.test_sizes) * 1.03)
    fix_ticks(axes.xaxis, _sizes_apart(summary.test_sizes))
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    _shade_what_was_trained(axes, summary)
    for row in there:
        _draw(axes, row, drawn[row.encoding], ended=ends_at(row, summary) is not None)
    label_line_ends(axes, [(_points(row)[-1][1], row.encoding, drawn[row.encoding].colour) for row in whole])
    for place, row in enumerate(row for row in there if row not in whole):
        _say_that_it_ends(axes, row, summary, drawn[row.encoding], place)
    return figure


def _sizes_apart(sizes: Sequence[int]) -> list[int]:
    """The sizes tested, the largest first, without those whose number would touch the one before."""
    apart: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not apart or apart[-1] - size >= 0.06 * apart[0]:
            apart.append(size)
    return apart


def _points(row: AlgorithmRow) -> list[tuple[int, float]]:
    return [(size, 100 * share.mean) for size, share in row.exact_match.items() if share is not None]


def _shade_what_was_trained(axes: Axes, summary: AlgorithmSummary) -> None:
    axes.axvspan(0, summary.train_size, color=RULE, alpha=0.45, linewidth=0)
    axes.axhline(100 * SOLVED, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.annotate(
        "trained",
        (summary.train_size / 2, 0.5),
        xycoords=("data", "axes fraction"),
        fontsize=TEXT - 1,
        color=MUTED,
        horizontalalignment="center",
    )


def _draw(axes: Axes, row: AlgorithmRow, style: Style, *, ended: bool) -> None:
    sizes, percents = zip(*_points(row), strict=True)
    axes.plot(
        sizes,
        percents,
        color=style.colour,
        linestyle=style.line,
        linewidth=1.8,
        marker=MARKERS[style.index],
        markersize=5,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )
    if ended:
        axes.plot(
            sizes[-1], percents[-1], color=style.colour, marker="X", markersize=10, markeredgecolor=PAPER, zorder=4
        )
    bands = [
        (size, max(100 * share.low, 0), min(100 * share.high, 100))
        for size, share in row.exact_match.items()
        if share is not None and share.low is not None and share.high is not None
    ]
    if bands:
        at, lows, highs = zip(*bands, strict=True)
        axes.fill_between(at, lows, highs, color=style.colour, alpha=0.1, linewidth=0)


def _say_that_it_ends(axes: Axes, row: AlgorithmRow, summary: AlgorithmSummary, style: Style, place: int) -> None:
    """Beside the shade, in the middle of the plot, where few lines run."""
    axes.annotate(
        f"✕ {row.encoding}: no position past {ends_at(row, summary):,}",
        (summary.train_size, 0.42 - 0.07 * place),
        xycoords=("data", "axes fraction"),
        xytext=(8, 0),
        textcoords="offset points",
        fontsize=TEXT,
        color=style.colour,
        parse_math=False,
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
