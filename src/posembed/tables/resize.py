"""Resizes tables to another number of positions or another grid, by any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posembed.arguments import checked, checks_arguments
from posembed.errors import ArgumentError
from posembed.settings import Count, Pair
from posembed.tables.layout import IMAGE_AXES, Axis, TableLayout, are_sides
from posembed.tables.resize_methods import TEXT, Kernels, groups, kernels_of
from posembed.tables.rows import table_rows

DEFAULT_TEXT_METHOD = TEXT.default
WHY_TEXT_METHOD = (
    "it keeps every existing row; in a sentence encoder linear was worse, in small language models far better"
)
"""Measured by benchmarks/resize_quality.py, where random rows did equally well, and by benchmarks/resampling.py. In
Longformer, which was lengthened and then fine-tuned, random rows were far worse than tiling (arXiv:2004.05150)."""

Method = Callable[[Tensor, Any], Tensor]


@checks_arguments
def resize_table(
    table: Tensor,
    *,
    length: Count | None = None,
    grid: Pair | None = None,
    sizes: Mapping[str, int] | None = None,
    method: str | Method | None = None,
    layout: TableLayout = TableLayout(),  # noqa: B008  (frozen)
) -> Tensor:
    """Resizes a table to another number of positions. The input is never changed.

    Rows that are not positions (reserved, prefix, tail) are copied bit for bit. The others are computed in float32
    (float64 for a float64 table) and rounded once. The result is differentiable in ``table``.

    Args:
        table: (N, D), (1, N, D) or (N, 1, D), floating; or of any shape, if ``layout.dims`` says which of its
            dimensions are positions.
        length: the new number of positions, for a sequence.
        grid: the new (height, width), for a layout with a grid.
        sizes: the new sizes of some or all axes by name, for a layout with axes. A signed relative axis of size n has
            2 n - 1 rows, one per difference.
        method: a name, or a function from (rows (n, D), length) to (length, D), such as ``partial(hierarchical,
            alpha=0.3)``, or from (rows (h, w, D), grid) to (height, width, D). The names (and defaults) are in
            ``TEXT_METHODS`` for a sequence ("tile", which truncates if the table gets shorter), ``GRID_METHODS`` for a
            grid ("bicubic-antialias"), ``DIFFERENCE_GRID_METHODS`` for differences of height and width ("bicubic"),
            ``LIMITED_METHODS`` for differences clipped at a maximum ("extend"), ``DIFFERENCE_METHODS`` for differences
            along one axis ("linear"), and ``LINE_METHODS`` for any other axis ("linear"). The axes "distance",
            "bucket" and "query" have their own methods, and the default for "number" is "tile". If several axes change,
            those without a method of this name get their default.
        layout: the roles of the rows of ``table``, with its current grid or axes.

    Returns:
        A new tensor of M rows with the table's dimensions, dtype and device: (M, D), (1, M, D) or (M, 1, D). If the
        size does not change, any method returns a copy.

    Raises:
        ArgumentError: a table, size or method that cannot be used, or a size or method that does not fit the table.

    Examples:
        >>> import torch
        >>> from posembed import resize_table
        >>> from posembed.tables import Axis, TableLayout
        >>> table = torch.randn(512, 64)
        >>> resize_table(table, length=2048).shape
        torch.Size([2048, 64])
        >>> image_table = torch.randn(1, 197, 64)  # a class token and 14 x 14 patches
        >>> resize_table(image_table, grid=(24, 24), layout=TableLayout.VIT.on_grid(14, 14)).shape
        torch.Size([1, 577, 64])
        >>> window = TableLayout(axes=(Axis("height", 7, relative=True), Axis("width", 7, relative=True)))
        >>> resize_table(torch.randn(169, 4), sizes={"height": 12, "width": 12}, layout=window).shape
        torch.Size([529, 4])
    """
    rows = layout.rows_in(table)
    if sum(size is not None for size in (length, grid, sizes)) != 1:
        raise ArgumentError(
            "pass exactly one of length=... (positions in a line), grid=(height, width) (images) and sizes={axis: "
            "size, ...}"
        )
    apart = tuple(table.shape[dim] for dim in layout.dims)
    if len(apart) > 1 and apart != layout.shape:
        raise ArgumentError(f"dimensions {layout.dims} must have the sizes {layout.shape}; got {apart}")
    front, positions, tail = layout.split(rows)
    new = new_layout(layout, len(positions), length=length, grid=grid, sizes=sizes)
    wide = rows.dtype == torch.float64
    cells = (positions if wide else positions.to(torch.float32)).unflatten(0, layout.shape or (len(positions),))
    parts = [(group, kernels_of(layout.axes[group])) for group in groups(layout.axes) or [slice(0, 1)]]
    sized: list[tuple[slice, Kernels, tuple[Any, ...]]]
    sized = [(group, kernels, new.shape[group] or (length,)) for group, kernels in parts]
    changed = [each for each in sized if cells.shape[each[0]] != each[2]]
    choices = [kernels for _, kernels, _ in changed or sized]
    if method is not None and not callable(method) and not any(method in each.methods for each in choices):
        raise unknown_method(method, choices)
    for group, kernels, size in changed:
        resize: Any = method if callable(method) else kernels.methods[kernels.chosen(method)]
        if are_sides(layout.axes):
            cells = on_both_sides(cells, layout.axes, new.axes, resize)
        else:
            cells = along(cells, group, resize, size)
    positions = cells.flatten(0, -2).to(rows.dtype)
    return new.stored(torch.cat([front, positions, tail]), like=table)


def new_layout(
    layout: TableLayout,
    cells: int,
    *,
    length: int | None,
    grid: tuple[int, int] | None,
    sizes: Mapping[str, int] | None,
) -> TableLayout:
    """Returns a table's layout at a new size, given as length, grid or sizes. cells: the current number of positions.

    Raises:
        ArgumentError: a size that does not fit the layout.
    """
    if length is not None:
        if layout.axes:
            held, remedy = layout.axes_in_words, "grid=(height, width)" if layout.grid else "sizes={axis: size, ...}"
            raise ArgumentError(f"the positions of this table are {held}; got length={length}. Pass {remedy}")
        return layout
    if not layout.axes:
        raise ArgumentError(
            f"the layout does not give the grid of this table's {cells} positions; pass a layout with the "
            "current grid, such as layout=TableLayout.VIT.on_grid(height, width)"
        )
    if grid is not None:
        sizes = dict(zip(IMAGE_AXES, grid, strict=True))
    return layout.resized({name: checked(name, size, Count) for name, size in (sizes or {}).items()})


def kernels_between(old: TableLayout, new: TableLayout) -> list[Kernels]:
    """Returns the methods for each group of axes that are resized together and have another size in the new layout;
    those for text if there is none."""
    changed = [old.axes[group] for group in groups(old.axes) if old.axes[group] != new.axes[group]]
    return [kernels_of(axes) for axes in changed or [()]]


def takes(old: TableLayout, new: TableLayout, method: str | None) -> bool:
    """Returns whether ``method`` names a method that resizes a table from the old layout to the new one."""
    return any(method in kernels.methods for kernels in kernels_between(old, new))


def along(cells: Tensor, group: slice, resize: Method, size: tuple[int, ...]) -> Tensor:
    """Resizes one or two axes of cells (..., D), the dimensions in ``group``; all other dimensions are columns."""
    dims, front = list(range(group.start, group.stop)), list(range(group.stop - group.start))
    moved = cells.movedim(dims, front)
    shape, columns = (*size, *moved.shape[len(size) :]), moved.flatten(len(size))
    if not columns.shape[-1]:  # a table for each of 0 layers
        return moved.new_empty(shape).movedim(front, dims)
    resized, expected = resize(columns, size[0] if len(size) == 1 else size), (*size, columns.shape[-1])
    if not isinstance(resized, Tensor) or resized.shape != expected:
        given = tuple(resized.shape) if isinstance(resized, Tensor) else type(resized).__name__
        raise ArgumentError(f"the method must return rows of shape {expected}; got {given}")
    return resized.reshape(shape).movedim(front, dims)


def on_both_sides(rows: Tensor, old: Sequence[Axis], new: Sequence[Axis], resize: Method) -> Tensor:
    """Resizes the rows (N, D) of limited differences, each side separately, from difference 0 on."""
    zero = old[0].size
    parts = (rows[: zero + 1].flip(0), new[0].size + 1), (rows[zero:], new[1].size)
    backward, forward = (
        along(part, slice(0, 1), resize, (size,)) if len(part) != size else part for part, size in parts
    )
    return torch.cat([backward[1:].flip(0), forward])


def unknown_method(method: object, kernels: Sequence[Kernels]) -> ArgumentError:
    what = " or ".join(dict.fromkeys(each.what for each in kernels))
    choices = ", ".join(dict.fromkeys(name for each in kernels for name in each.methods))
    return ArgumentError(f"no method for {what} is called {method!r}; choose one of {choices}")


@checks_arguments
def leading_rows_kept(old: Tensor, new: Tensor) -> int:
    """Counts the leading rows that a resize kept: the rows that are equal in both tables, bit for bit.

    Raises:
        ArgumentError: an argument that is not a table, or tables of different widths or dtypes.

    Examples:
        >>> import torch
        >>> from posembed import resize_table
        >>> from posembed.tables import leading_rows_kept
        >>> table = torch.randn(512, 64)
        >>> leading_rows_kept(table, resize_table(table, length=2048))
        512
        >>> leading_rows_kept(table, resize_table(table, length=2048, method="linear"))
        1
    """
    if (old.dtype, old.shape[-1:]) != (new.dtype, new.shape[-1:]):
        raise ArgumentError(
            "two tables of one width and dtype can be compared bit for bit; "
            f"got {old.dtype} of shape {tuple(old.shape)} and {new.dtype} of shape {tuple(new.shape)}"
        )
    # Rows of one number count as contiguous at any stride, but only a copy can be viewed as bytes.
    copies = (table_rows(table).detach().clone(memory_format=torch.contiguous_format) for table in (old, new))
    old_bytes, new_bytes = (rows.view(torch.uint8) for rows in copies)
    shared = min(len(old_bytes), len(new_bytes))
    same = (old_bytes[:shared] == new_bytes[:shared]).all(dim=1)
    return int(same.long().cumprod(0).sum())
