"""Figures of one position table, row by row: values, norms, and how similar its rows are.

Figures of large tables show every k-th row; numbers are computed on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posembed.arguments import checked
from posembed.errors import ArgumentError
from posembed.plots.canvas import axes_for, draws, room_for, room_for_rows, title_of
from posembed.plots.grids import similarity_maps
from posembed.plots.heat import MOST_DRAWN, heat, of_every, scale_beside, strongest, thinned
from posembed.plots.source import Rows, Source, named_rows, rows_of
from posembed.plots.style import MUTED, SERIES, TEXT, WIDTH, shortened, styles
from posembed.plots.ticks import label_line_ends, room_for_lines, whole_numbers
from posembed.settings import Amount
from posembed.tables.similarity import cosine_by_distance, cosine_matrix, neighbour_cosine

Curves: TypeAlias = "Mapping[str, tuple[int, Tensor]]"
"""Curves by name: the first x, and the values at it and at the whole numbers after it."""
HOW_FAR = 2
"""Similarity by distance is drawn up to the number of rows divided by this: few pairs are farther apart."""


@draws
def heatmap(table: Source, *, key: str | None = None, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draws the values of a table: rows from left to right, dimensions from top to bottom.

    Blue is negative, white zero, red positive. The largest 0.5% of the absolute values share the strongest colour.

    Args:
        table: a floating-point tensor or array (N, D), a layer with a learned table, or the path or hub name of a
            checkpoint. Rows that hold no position (padding, class token) are left out.
        key: the name of one table, if a checkpoint or a module has several.
        ax: the Axes to draw on. None means a new figure.
        title: replaces the default title. Notes, such as one on rows that cannot be drawn, are appended.

    Raises:
        ArgumentError: ``table``, ``ax`` or ``title`` has the wrong type, or a module has several tables and ``key``
            names none of them.
        CheckpointError: the checkpoint cannot be read, or the key is unknown; the error lists the known keys.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.heatmap(posembed.LearnedPositionalEmbedding(max_len=64, dim=32))
        >>> ax.figure.savefig("table.png")  # doctest: +SKIP
    """
    rows = rows_of(table, key)
    drawn, step = thinned(rows.values)
    largest = strongest(rows.values)
    name = f"values, ± {largest:.2g}" if rows.values.numel() else "values"
    title = title_of(title, name, [*of_every(step), *rows.notes])
    left = room_for_rows(rows.values.size(1))
    axes = axes_for(ax, title=title, height=150, left=left, x="row", y="dimension")
    extent = (rows.first - 0.5, rows.last + 0.5, rows.values.size(1) - 0.5, -0.5)
    heat(axes, thinned(drawn.T)[0], largest, extent=extent)
    if rows.values.numel():
        whole_numbers(axes.xaxis, 6)
    return axes


@draws
def similarity(
    table: Source,
    *,
    key: str | None = None,
    grid: tuple[int, int] | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws the cosine of every pair of rows.

    Red is similar, white unrelated, blue opposite. Stripes along the diagonal show that similarity depends on the
    distance. For the patches of an image it draws nine maps instead: the cosines of one patch to all patches.

    Args:
        table, key, ax, title: as in ``heatmap``.
        grid: (height, width) of a tensor whose rows are the patches of an image. Layers and checkpoints store their
            own.
        colorbar: whether to draw the scale at the right.

    Returns:
        The Axes. The nine maps are its ``child_axes``.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.similarity(posembed.tables.sinusoidal_table(128, 64), title="sinusoids")
    """
    rows = rows_of(table, key, grid)
    if rows.grid is not None:
        return similarity_maps(rows, ax=ax, title=title)
    drawn, step = thinned(rows.measured)
    cosines = cosine_matrix(drawn) if drawn.numel() else drawn
    known = thinned(rows.finite)[0]
    cosines = cosines.where(known[:, None] & known, float("nan")) if drawn.numel() else cosines
    left = room_for_rows(rows.last)
    side = WIDTH - left - (66 if colorbar else 12)
    title = title_of(title, "cosines between rows", [*of_every(step), *rows.notes])
    axes = axes_for(ax, title=title, height=side, left=left, right=WIDTH - left - side, x="row", y="row")
    heat(axes, cosines, 1.0, extent=(rows.first - 0.5, rows.last + 0.5, rows.last + 0.5, rows.first - 0.5))
    if colorbar and drawn.numel():
        scale_beside(axes, gap=18 / side, width=10 / side)
    return axes


@draws
def similarity_by_distance(
    table: Source | Mapping[str, Source], *, key: str | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draws the mean cosine between rows by their distance, up to half the length of the table. One line per table.

    Args:
        table: as in ``heatmap``, or several tables by name.
        key, ax, title: as in ``heatmap``.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import torch
        >>> import posembed
        >>> tables = {"sinusoidal": posembed.tables.sinusoidal_table(128, 64), "random": torch.randn(128, 64)}
        >>> ax = posembed.plots.similarity_by_distance(tables)
    """
    tables = named_rows(table, key)
    axes = line_axes(ax, tables, title, "mean cosine of two rows", height=150, x="distance in rows", grid="y")
    name_lines(axes, draw_by_distance(axes, tables))
    return axes


def draw_by_distance(axes: Axes, tables: Mapping[str, Rows]) -> Curves:
    curves = {name: (0, by_distance(rows)) for name, rows in tables.items() if rows.values.numel()}
    draw_lines(axes, curves)
    axes.axhline(0, color=MUTED, linewidth=0.6)
    axes.set_ylim(top=1.04)
    axes.set_xlim(0, max([1, *(len(values) - 1 for _, values in curves.values())]))
    return curves


def by_distance(rows: Rows) -> Tensor:
    """Returns the mean cosine of finite rows by distance, up to half of the table; NaN at distances without a pair."""
    pairs = cosine_by_distance(rows.finite.double()[:, None])  # the share of the pairs whose rows are both finite
    means = cosine_by_distance(rows.measured) / pairs
    return means.where(pairs > 0.5 / len(rows), float("nan"))[: len(rows) // HOW_FAR + 1]


@draws
def norms(
    table: Source | Mapping[str, Source],
    *,
    key: str | None = None,
    marked: Sequence[int] = (),
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws the norm of each row of a table. One line per table.

    A row whose norm stands out has a special role, or was never trained.

    Args:
        table: as in ``heatmap``, or several tables by name.
        key, ax, title: as in ``heatmap``.
        marked: the row numbers to mark, such as those that ``posembed.tables.check_table`` reports.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import posembed
        >>> layer = posembed.LearnedPositionalEmbedding(max_len=64, dim=32)
        >>> ax = posembed.plots.norms(layer, marked=[0, 63])
    """
    tables = named_rows(table, key)
    marked = checked_marks(marked, tables.values())
    axes = line_axes(ax, tables, title, "norm of each row", height=110, x="row", grid="y")
    name_lines(axes, draw_norms(axes, tables))
    for rows in tables.values():
        point_out(axes, marked, rows)
    return axes


@draws
def neighbours(
    table: Source | Mapping[str, Source], *, key: str | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draws the cosine between each row of a table and the next row. One line per table.

    Args:
        table: as in ``heatmap``, or several tables by name.
        key, ax, title: as in ``heatmap``.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.neighbours(posembed.tables.sinusoidal_table(128, 64))
    """
    tables = named_rows(table, key)
    alone = ["a single row has no neighbour"] if any(len(rows) == 1 for rows in tables.values()) else []
    axes = line_axes(ax, tables, title, "cosine of each row to the next", alone, height=110, x="row", grid="y")
    curves = {}
    for name, rows in tables.items():
        if len(rows) > 1 and rows.values.numel():
            both = rows.finite[:-1] & rows.finite[1:]
            curves[name] = (rows.first, neighbour_cosine(rows.measured).where(both, float("nan")))
    draw_lines(axes, curves)
    name_lines(axes, curves)
    return axes


def checked_marks(marked: Sequence[int], tables: Iterable[Rows]) -> list[int]:
    """Returns the numbers of rows to mark, ascending. Raises ArgumentError for anything that is no row of a table."""
    if isinstance(marked, str) or not isinstance(marked, Iterable) or getattr(marked, "ndim", 1) != 1:
        raise ArgumentError(f"marked: expected numbers of rows, such as [0, 511]; got {marked!r}")
    numbers = {checked("marked", row, Amount) for row in marked}
    last = max(rows.last + rows.after for rows in tables)
    if numbers and max(numbers) > last:
        raise ArgumentError(f"marked: expected numbers of rows up to {last}; got {max(numbers)}")
    return sorted(numbers)


def draw_norms(axes: Axes, tables: Mapping[str, Rows], colours: Sequence[str] = ()) -> Curves:
    curves = {name: (rows.first, rows.norms) for name, rows in tables.items() if rows.values.numel()}
    draw_lines(axes, curves, colours)
    largest = max((values.nan_to_num(0).max().item() for _, values in curves.values()), default=0.0)
    axes.set_ylim(0, min(1.25 * largest, 1e308) or 1.0)
    return curves


def line_axes(
    ax: Axes | None,
    tables: Mapping[str, Rows],
    title: str | None,
    drawn: str,
    more: Sequence[str] = (),
    *,
    height: float,
    **words: Any,
) -> Axes:
    """Returns axes for lines of tables, with room for their names. The title lists the rows that cannot be drawn."""
    notes = [f"{shortened(name)}: {note}" if name else note for name, rows in tables.items() for note in rows.notes]
    right, height = (room_for(tables), max(height, room_for_lines(len(tables)))) if len(tables) > 1 else (20, height)
    return axes_for(ax, title=title_of(title, drawn, [*notes, *more]), right=right, height=height, **words)


def draw_lines(axes: Axes, curves: Curves, colours: Sequence[str] = ()) -> None:
    """Draws curves by name, each in its colour. The x axis shows whole numbers, from the first to the last."""
    looks = styles(list(curves))
    for index, (name, (first, values)) in enumerate(curves.items()):
        kept = kept_in_lines(values)
        how: dict[str, Any] = {"linestyle": looks[name].line, "linewidth": 1.1 if len(curves) == 1 else 1.4}
        how |= {"marker": "o", "markersize": 4} if len(kept) == 1 else {}
        colour = colours[index] if colours else looks[name].colour
        axes.plot((first + kept).tolist(), values[kept].tolist(), color=colour, label=name or None, **how)
    ends = [(first, first + max(len(values), 2) - 1) for first, values in curves.values()]
    if ends:
        axes.set_xlim(min(first for first, _ in ends) - 0.5, max(last for _, last in ends) + 0.5)
    whole_numbers(axes.xaxis, 6)
    axes.yaxis.set_major_locator(MaxNLocator(3))


def kept_in_lines(values: Tensor) -> Tensor:
    """Returns the indices to draw: all, or the lowest and the highest value of each block if there are too many."""
    if len(values) <= 4 * MOST_DRAWN:
        return torch.arange(len(values))
    size = math.ceil(len(values) / (2 * MOST_DRAWN))
    blocks = zip(range(0, len(values), size), values.split(size), strict=True)
    return torch.tensor(sorted({start + int(i) for start, block in blocks for i in (block.argmin(), block.argmax())}))


def name_lines(axes: Axes, curves: Curves) -> None:
    """Writes the names of several curves beside the plot."""
    if len(curves) < 2:
        return
    looks, ends = styles(list(curves)), []
    for name, (_, values) in curves.items():
        known = values[values.isfinite()]
        if len(known):
            ends.append((known[-1].item(), name, looks[name].colour))
    label_line_ends(axes, ends)


def point_out(axes: Axes, marked: Sequence[int], rows: Rows) -> None:
    """Draws a dot at the norm of each marked row (ascending), and the row's number unless it would overlap another."""
    low, high = axes.get_xlim()
    near, last = (high - low) * 0.09, -math.inf
    for row in marked:
        if not 0 <= row - rows.first < len(rows):
            continue
        height = rows.norms[row - rows.first].item()
        axes.plot(row, height, "o", color=SERIES[3], markersize=4, clip_on=False)
        if row - last < near:
            continue
        last = row
        offset, side = (-5, "right") if row > low + 0.9 * (high - low) else (5, "left")
        how: dict[str, Any] = {"horizontalalignment": side, "fontsize": TEXT - 1, "color": SERIES[3]}
        axes.annotate(f"{row:,}", (row, height), xytext=(offset, 3), textcoords="offset points", **how)
