"""Reads the rows (N, D) of a table from a tensor, also as float64, and scales values near the limits of floats."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError


def is_table(tensor: Tensor) -> bool:
    """Returns whether a tensor has the dtype and usual shape of a table: floating, (N, D), (1, N, D) or (N, 1, D)."""
    return tensor.dim() <= 3 and holds_rows(tensor)


def holds_rows(tensor: Tensor) -> bool:
    """Returns whether a tensor has the shape of a table with any number of leading dimensions of size 1: (1, 1, N,
    D)."""
    return tensor.dim() > 1 and 0 not in tensor.shape and tensor.is_floating_point() and _rows_at(tensor) is not None


def _rows_at(tensor: Tensor) -> int | None:
    """Returns the dimension that enumerates the rows of a table, or None if there is none."""
    *lead, rows, _ = tensor.shape
    if all(size == 1 for size in lead):
        return len(lead)
    return 0 if len(lead) == 1 and rows == 1 else None


def table_rows(table: Tensor) -> Tensor:
    """Returns a view of the rows (N, D) of a floating table (N, D), (N, 1, D), (1, N, D), (1, 1, N, D) and so on.

    Raises ArgumentError for anything else.
    """
    if not holds_rows(table):
        raise ArgumentError(
            f"a table is a floating tensor (N, D), (1, N, D) or (N, 1, D); got {table.dtype} of shape "
            f"{tuple(table.shape)}. Pass the rows alone, such as model.wpe.weight"
        )
    return table.flatten(0, -2) if table.dim() > 2 else table


def as_table(rows: Tensor, table: Tensor) -> Tensor:
    """Returns a view of rows (M, D) with the dimensions of a table, such as (M, D), (1, M, D) or (M, 1, D)."""
    at = _rows_at(table) or 0
    return rows.reshape(*(len(rows) if dim == at else 1 for dim in range(table.dim() - 1)), rows.shape[1])


def float64_rows(table: Tensor, *, at_least: int = 1) -> Tensor:
    """Returns the rows (N, D) of a table, as ``table_rows`` does, in float64 on the CPU, detached.

    Raises ArgumentError for a table that ``table_rows`` rejects, or that has too few rows, NaN or infinity.
    """
    rows = table_rows(table).detach().to("cpu", torch.float64)
    if len(rows) < at_least:
        raise ArgumentError(f"this needs a table of {at_least} rows or more; got {len(rows)}")
    broken = (~rows.isfinite()).any(dim=1).nonzero()
    if len(broken):
        raise ArgumentError(
            f"this needs a table without NaN and infinity; got {len(broken)} such rows, the first is row "
            f"{broken[0].item()}. posembed.tables.check_table lists them; pass the table without them"
        )
    return rows


def extreme_scale(values: Tensor, dim: int | None = None) -> Tensor:
    """Returns the largest absolute value, of all or along ``dim``, if its square would overflow or vanish, else 1.

    Values divided by the result can be squared, whatever their scale.
    """
    if not values.numel():
        return values.new_ones(())
    largest = values.abs().amax() if dim is None else values.abs().amax(dim=dim, keepdim=True)
    return largest.where((largest > 0) & ((largest < 1e-100) | (largest > 1e100)), 1)
