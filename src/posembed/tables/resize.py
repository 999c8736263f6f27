"""Resizes tables to another number of positions or another grid, by any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout, as_table, table_rows
from posembed.tables.resize_methods import GRID_METHODS, TEXT_METHODS

DEFAULT_TEXT_METHOD = "tile"
WHY_TEXT_METHOD = "it keeps every existing row, and in a sentence encoder linear interpolation was worse at all lengths"
"""Measured by benchmarks/resize_quality.py, where random rows did equally well. In Longformer, which was lengthened
and then fine-tuned, random rows were far worse than tiling (arXiv:2004.05150)."""
DEFAULT_GRID_METHOD = "bicubic-antialias"

Method = Callable[[Tensor, Any], Tensor]


def resize_table(
    table: Tensor,
    *,
    length: int | None = None,
    grid: tuple[int, int] | None = None,
    method: str | Method | None = None,
    layout: TableLayout = TableLayout(),  # noqa: B008  (frozen)
) -> Tensor:
    """Resizes a table to another number of positions. The input is never changed.

    Rows that are not positions (reserved, prefix, tail) are copied bit for bit. The others are computed in float32
    (float64 for a float64 table) and rounded once. The result is differentiable in ``table``.

    Args:
        table: (N, D), (1, N, D) or (N, 1, D), floating.
        length: the new number of positions, for positions in a line.
        grid: the new (height, width), for a layout with a grid.
        method: a name in ``TEXT_METHODS`` (default "tile", which truncates if the table gets shorter) or in
            ``GRID_METHODS`` (default "bicubic-antialias"); or a function from (rows (n, D), length) to
            (length, D), or from (rows (h, w, D), grid) to (height, width, D), such as
            ``partial(hierarchical, alpha=0.3)``.
        layout: the roles of the rows of ``table``, with its current grid.

    Returns:
        A new tensor with the table's axes, dtype and device: (M, D), (1, M, D) or (M, 1, D). If the size
        does not change, any method returns a copy.

    Raises:
        ArgumentError: a table, size or method that cannot be used, or a size or method that does not fit the table.
    """
    rows = table_rows(table)
    if (length is None) == (grid is None):
        raise ArgumentError("pass exactly one of length=... (positions in a line) and grid=(height, width) (images)")
    front, positions, tail = layout.split(rows)
    size: Any
    shape: tuple[int, ...]
    if grid is None:
        if layout.grid is not None:
            raise ArgumentError(
                f"the positions of this table are a grid of {layout.grid[0]} x {layout.grid[1]}; got length={length}. "
                "Pass grid=(height, width)"
            )
        if not isinstance(length, int) or length < 1:
            raise ArgumentError(f"length must be a whole number from 1; got {length!r}")
        resize = _find(method, TEXT_METHODS, DEFAULT_TEXT_METHOD, "positions in a line")
        size, shape = length, (length, rows.shape[1])
    else:
        if layout.grid is None:
            raise ArgumentError(
                f"the layout does not give the grid of this table's {len(positions)} positions; pass a layout with the "
                "current grid, such as layout=TableLayout.VIT.on_grid(height, width)"
            )
        if not (isinstance(grid, Sequence) and [isinstance(side, int) and side > 0 for side in grid] == [True, True]):
            raise ArgumentError(f"grid must be (height, width), whole numbers from 1; got {grid!r}")
        resize = _find(method, GRID_METHODS, DEFAULT_GRID_METHOD, "a grid")
        size, shape = tuple(grid), (*grid, rows.shape[1])
        positions = positions.unflatten(0, layout.grid)
    if positions.shape != shape:
        positions = resize(positions if rows.dtype == torch.float64 else positions.to(torch.float32), size)
    if positions.shape != shape:
        raise ArgumentError(f"the method must return rows of shape {shape}; got {tuple(positions.shape)}")
    new = torch.cat([front, positions.flatten(0, -2).to(rows.dtype), tail])
    return as_table(new, table)


def leading_rows_kept(old: Tensor, new: Tensor) -> int:
    """Counts the leading rows that a resize kept: the rows that are equal in both tables, bit for bit.

    Raises:
        ArgumentError: an argument that is not a table, or tables of different widths or dtypes.
    """
    if (old.dtype, old.shape[-1:]) != (new.dtype, new.shape[-1:]):
        raise ArgumentError(
            "two tables of one width and dtype can be compared bit for bit; "
            f"got {old.dtype} of shape {tuple(old.shape)} and {new.dtype} of shape {tuple(new.shape)}"
        )
    old_bytes, new_bytes = (table_rows(table).detach().contiguous().view(torch.uint8) for table in (old, new))
    shared = min(len(old_bytes), len(new_bytes))
    same = (old_bytes[:shared] == new_bytes[:shared]).all(dim=1)
    return int(same.long().cumprod(0).sum())


def _find(method: str | Method | None, methods: Mapping[str, Method], default: str, kind: str) -> Method:
    if callable(method):
        return method
    if method is None:
        return methods[default]
    if method not in methods:
        raise ArgumentError(f"no method for {kind} is called {method!r}; choose one of {', '.join(methods)}")
    return methods[method]
