"""Figures of a checkpoint's table for its page: plots of posembed.plots at their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from posembed.plots.canvas import axes_at, figure_of, new_figure, room_for_rows
from posembed.plots.source import Rows
from posembed.plots.spectra import directions, fourier, spectrum
from posembed.plots.style import WIDTH
from posembed.plots.tables import heatmap, neighbours, norms, similarity


def figures(rows: Rows, marked: Sequence[int]) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure of each picture. marked: numbers of rows that stand out."""
    if rows.grid is None:
        yield "along", along_figure(rows, marked)
        yield "similarity", figure_of(similarity, rows)
        yield "spectrum", spectrum_figure(rows)
        yield "components", figure_of(directions, rows, title="")
        yield "fourier", figure_of(fourier, rows)
    else:
        yield "grid-similarity", figure_of(similarity, rows, title="")
        yield "grid-components", figure_of(directions, rows, title="")
        yield "spectrum", spectrum_figure(rows)


def along_figure(rows: Rows, marked: Sequence[int]) -> Figure:
    """Draws values, norms, and cosines of neighbours, one below the other."""
    figure = new_figure(430)
    left = room_for_rows(rows.values.size(1))
    where: dict[str, Any] = {"left": left, "width": WIDTH - left - 8}
    heatmap(rows, ax=axes_at(figure, top=26, height=150, **where)).set_xlabel("")
    norms(rows, marked=marked, ax=axes_at(figure, top=214, height=72, **where)).set_xlabel("")
    neighbours(rows, ax=axes_at(figure, top=324, height=62, **where))
    return figure


def spectrum_figure(rows: Rows) -> Figure:
    """Draws the singular values, and the cumulative share of the variance."""
    figure = new_figure(250)
    where: dict[str, Any] = {"top": 26, "width": 168, "height": 175}
    spectrum(rows, cumulative=False, ax=axes_at(figure, left=44, **where))
    spectrum(rows, ax=axes_at(figure, left=WIDTH - 168 - 10, **where))
    return figure
