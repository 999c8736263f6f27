"""Figures of a checkpoint's table for its page, drawn with posembed.plots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from posembed.checkpoints.inspect import FEWEST_ROWS, MOST_ROWS, TableReport
from posembed.checkpoints.position_tables import PositionTable
from posembed.plots.biases import bias_lines, bias_maps, bucket_lines, layer_line
from posembed.plots.canvas import figure_of, page, room_for_rows
from posembed.plots.source import Rows
from posembed.plots.spectra import directions, fourier, spectrum
from posembed.plots.style import WIDTH
from posembed.plots.tables import heatmap, neighbours, norms, similarity
from posembed.tables.along_axes import differences

FEWEST_LAYERS = 3  # that a line shows


def figures_of(group: Sequence[TableReport]) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure of each picture of the first of several tables that are alike."""
    report = group[0]
    table, values = report.table, report.values
    if report.buckets and values.isfinite().all():
        yield "buckets", bucket_lines(report.buckets, values.double())
    elif isinstance(table, PositionTable) and report.learned is not None:
        layout = table.layout
        cells = layout.split(values)[1].double()
        steps = differences(layout) if report.relative else ()
        if report.of_biases and len(steps) == 2 and cells.isfinite().all():
            yield "bias-maps", bias_maps(cells, *steps)
        elif report.of_biases and len(steps) == 1 and cells.isfinite().all():
            yield "bias-lines", bias_lines(cells, steps[0])
        else:
            marked = [row for finding in report.findings if finding.what == "outlying" for row in finding.rows]
            yield from figures(placed(report, cells[:MOST_ROWS]), marked, *named(report))
    if len(group) >= FEWEST_LAYERS and all(each.values.isfinite().all() for each in group):
        yield "layers", layer_line([each.values for each in group])


def placed(report: TableReport, cells: Tensor) -> Rows:
    """Returns a table's cells as rows to draw: a grid for an image, ascending differences, or numbered rows."""
    assert isinstance(report.table, PositionTable)
    layout = report.table.layout
    flat = (
        (layout.shape[0], layout.shape[1]) if len(layout.shape) == 2 and len(cells) == math.prod(layout.shape) else None
    )
    if report.relative and len(layout.shape) == 1:
        return Rows(cells, int(differences(layout)[0][0]))
    return Rows(cells, layout.front, flat, len(report.values) - layout.front - len(cells))


def named(report: TableReport) -> tuple[str, ...]:
    """Returns the name of the rows on an axis: "difference", "time" or, for a text, nothing."""
    assert isinstance(report.table, PositionTable)
    axes = report.table.layout.axes
    return ("difference",) if report.relative else (axes[0].name,) if len(axes) == 1 else ()


def figures(rows: Rows, marked: Sequence[int], name: str = "row") -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure of each picture. marked: numbers of rows that stand out. name: what a row is."""
    if rows.grid is not None:
        yield "grid-similarity", figure_of(similarity, rows, title="")
        yield "grid-components", figure_of(directions, rows, title="")
        yield "spectrum", spectrum_figure(rows)
        return
    yield "along", along_figure(rows, marked, name)
    if len(rows) >= FEWEST_ROWS:
        yield "similarity", relabelled(figure_of(similarity, rows), name)
        yield "spectrum", spectrum_figure(rows)
    yield "components", relabelled(figure_of(directions, rows, title=""), name)
    if len(rows) >= FEWEST_ROWS:
        yield "fourier", figure_of(fourier, rows)


def relabelled(figure: Figure, name: str) -> Figure:
    """Writes the name of the rows on the axes of a figure."""
    for axes in figure.findobj(Axes):
        for label in (axes.xaxis.label, axes.yaxis.label):
            if label.get_text() == "row":
                label.set_text(name)
    return figure


def along_figure(rows: Rows, marked: Sequence[int], name: str = "row") -> Figure:
    """Draws values, norms, and cosines of neighbours, one below the other."""
    panels = page(430)
    left = room_for_rows(rows.values.size(1))
    where: dict[str, Any] = {"left": left, "width": WIDTH - left - 8}
    heatmap(rows, ax=panels.at(top=26, height=150, **where)).set_xlabel("")
    norms(rows, marked=marked, ax=panels.at(top=214, height=72, **where)).set_xlabel("")
    neighbours(rows, ax=panels.at(top=324, height=62, **where)).set_xlabel(name)
    return panels.axes


def spectrum_figure(rows: Rows) -> Figure:
    """Draws the singular values, and the cumulative share of the variance."""
    panels = page(250)
    where: dict[str, Any] = {"top": 26, "width": 168, "height": 175}
    spectrum(rows, cumulative=False, ax=panels.at(left=44, **where))
    spectrum(rows, ax=panels.at(left=WIDTH - 168 - 10, **where))
    return panels.axes
