"""The first figure about images: accuracy by the side of the images, a line an encoding."""

from __future__ import annotations

from matplotlib.figure import Figure

from posembed.lab.questions.images import ImageSummary
from posembed.report.drawing import MARKERS, MUTED, PAPER, RULE, TEXT, Style, fix_ticks, lines_sheet
from posembed.report.labels import label_line_ends


def image_figure(summary: ImageSummary, drawn: dict[str, Style]) -> Figure:
    """Percent of held-out images told, with intervals over seeds; the points of a size stand side by side."""
    there = [row for row in summary.rows if row.accuracy]
    figure, axes = lines_sheet(
        330,
        title="held-out images told, percent",
        below="side of the images in pixels",
        names=[row.encoding for row in there],
    )
    step = (max(summary.test_sizes) - min(summary.test_sizes) or 1) / 100
    for place, row in enumerate(there):
        style = drawn[row.encoding]
        at = [size + (place - (len(there) - 1) / 2) * step for size in summary.test_sizes]
        means = [100 * row.accuracy[size].mean for size in summary.test_sizes]
        axes.plot(
            at,
            means,
            color=style.colour,
            linewidth=1.6,
            marker=MARKERS[style.index],
            markersize=6,
            markeredgecolor=PAPER,
            markeredgewidth=0.8,
        )
        for x, estimate in zip(at, row.accuracy.values(), strict=True):
            if estimate.low is not None and estimate.high is not None:
                ends = (100 * estimate.low, 100 * estimate.high)
                axes.plot((x, x), ends, color=style.colour, linewidth=1.4, alpha=0.6)
    low, _ = axes.get_ylim()
    axes.set_ylim(max(low, -2), 102)
    fix_ticks(axes.xaxis, summary.test_sizes)
    axes.axvline(summary.train_size, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    axes.annotate(
        "trained",
        (summary.train_size, 0.01),
        xycoords=axes.get_xaxis_transform(),
        xytext=(5, 0),
        textcoords="offset points",
        fontsize=TEXT - 1,
        color=MUTED,
    )
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    names = [
        (100 * row.accuracy[summary.test_sizes[-1]].mean, row.encoding, drawn[row.encoding].colour) for row in there
    ]
    label_line_ends(axes, names)
    return figure
