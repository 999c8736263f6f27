"""Tables of fixed sines and cosines under keys that look learned: recognised by their values, and recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from posembed.checkpoints.found import Size
from posembed.tables.fill import sinusoidal_table
from posembed.tables.layout import TableLayout

# Values in bfloat16 are off by up to 2^-9; learned rows are off by far more than this.
TOLERANCE = 0.01


def halves(length: int, dim: int) -> Tensor:
    """Returns the paper's frequencies with all sines before all cosines: (length, D)."""
    table = sinusoidal_table(length, dim)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


FORMULAS: Mapping[str, Callable[[int, int], Tensor]] = {
    "sines and cosines in pairs (Vaswani)": sinusoidal_table,
    "sines, then cosines (Marian, Pegasus, RoFormer)": halves,
    "sines, then cosines, frequencies to the base (tensor2tensor, fairseq, Whisper)": partial(
        sinusoidal_table, interleaved=False
    ),
}


def looks_sinusoidal(table: Tensor) -> bool:
    """Whether every nonzero row (N, D) has norm sqrt(D/2), as sines and cosines do and learned rows do not."""
    norms = table.double().norm(dim=-1)
    norms = norms[norms > 0]
    expected = (table.shape[-1] / 2) ** 0.5
    return len(norms) > 0 and bool(((norms / expected - 1).abs() < TOLERANCE).all())


def recomputed(old: Tensor, layout: TableLayout, new_layout: TableLayout, length: int) -> tuple[Tensor, str] | None:
    """Recomputes a fixed sinusoid (N, D) at another length or grid: its rows (M, D) and the name of its formula.

    Returns None if the formula is unknown.
    """
    if layout.grid is not None and new_layout.grid is not None:
        front, cells, tail = layout.split(old)
        if cells.shape[1] % 4 or not is_close(grid_sinusoid(layout.grid, cells.shape[1]), cells):
            return None
        new = torch.cat([front, grid_sinusoid(new_layout.grid, cells.shape[1]).to(old.dtype), tail])
        return new, "sines and cosines of column and line (MAE)"
    rows, dim = new_layout.rows(length), old.shape[1]
    if dim < 2 or dim % 2:
        return None
    zero_rows = (old == 0).all(dim=1).nonzero().flatten()  # of padding
    for name, formula in FORMULAS.items():
        for first in (0, 1, 2):  # the position of row 0
            table = formula(first + max(rows, len(old)), dim)[first:]
            table[zero_rows] = 0
            if is_close(table[: len(old)], old):
                new, shared = table[:rows].to(old.dtype), min(rows, len(old))
                new[:shared] = old[:shared]  # keeps the rounding of the library that made them
                return new, name
    return None


def grid_sinusoid(grid: Size, dim: int) -> Tensor:
    """Returns (height * width, D): half of each row says the column, half the line (MAE, He et al. 2021)."""
    height, width = grid
    columns, lines = halves(width, dim // 2), halves(height, dim // 2)
    return torch.cat([columns.repeat(height, 1), lines.repeat_interleave(width, dim=0)], dim=1)


def is_close(expected: Tensor, actual: Tensor) -> bool:
    return bool((expected - actual.float()).abs().max() < TOLERANCE)
