"""The rows of a table, however a model stores them."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError


def table_rows(table: Tensor) -> Tensor:
    """Returns a view of the rows (N, D) of a table (N, D) or (1, N, D) of a floating dtype.

    Raises:
        ArgumentError: another shape or dtype, or no rows at all.
    """
    rows = table[0] if table.dim() == 3 and len(table) == 1 else table
    if rows.dim() != 2 or 0 in rows.shape or not rows.is_floating_point():
        raise ArgumentError(
            f"a table is a floating tensor (N, D) or (1, N, D); got {table.dtype} of shape {tuple(table.shape)}. "
            "Pass the rows alone, such as model.wpe.weight"
        )
    return rows


def float64_rows(table: Tensor, *, at_least: int = 1) -> Tensor:
    """Returns the rows (N, D) of a table (N, D) or (1, N, D) in float64 on the CPU, detached.

    Raises:
        ArgumentError: a table that ``table_rows`` rejects, fewer rows than ``at_least``, NaN or infinity.
    """
    rows = table_rows(table).detach().to("cpu", torch.float64)
    if len(rows) < at_least:
        raise ArgumentError(f"this needs a table of {at_least} rows or more; got {len(rows)}")
    broken = (~rows.isfinite()).any(dim=1).nonzero()
    if len(broken):
        raise ArgumentError(
            f"nothing can be said of a table with NaN or infinity in it; got {len(broken)} such rows, the first "
            f"row {broken[0].item()}. posembed.check_table names them; pass the table without them"
        )
    return rows
