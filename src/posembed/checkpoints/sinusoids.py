"""Tables of fixed sines and cosines under keys that look learned: recognised by their values, and made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.tables.fill import sinusoidal_table

# Values in bfloat16 are off by up to 2^-9; learned rows are off by far more than this.
TOLERANCE = 0.01


def halves(length: int, dim: int) -> Tensor:
    """The paper's frequencies, with all sines before all cosines."""
    table = sinusoidal_table(length, dim)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def halves_to_the_base(length: int, dim: int) -> Tensor:
    return sinusoidal_table(length, dim, interleaved=False)


FORMULAS: Mapping[str, Callable[[int, int], Tensor]] = {
    "sines and cosines in pairs (Vaswani)": sinusoidal_table,
    "sines, then cosines (Marian, Pegasus, RoFormer)": halves,
    "sines, then cosines, frequencies to the base (tensor2tensor, fairseq, Whisper)": halves_to_the_base,
}


@dataclass(frozen=True)
class Sinusoid:
    """A formula, the position of row 0, and the rows that are zero instead (padding)."""

    formula: str
    first: int
    zero_rows: tuple[int, ...]

    def rows(self, length: int, dim: int) -> Tensor:
        """(length, D), float32."""
        table = FORMULAS[self.formula](self.first + length, dim)[self.first :]
        table[[row for row in self.zero_rows if row < length]] = 0
        return table


def looks_sinusoidal(table: Tensor) -> bool:
    """Whether every non-zero row of (N, D) has norm sqrt(D/2), as sines and cosines do and learned rows do not."""
    norms = table.double().norm(dim=-1)
    norms = norms[norms > 0]
    expected = (table.shape[-1] / 2) ** 0.5
    return len(norms) > 0 and bool(((norms / expected - 1).abs() < TOLERANCE).all())


def recognise(table: Tensor) -> Sinusoid | None:
    """The formula behind a table (N, D), or None where it is one that is not known here."""
    length, dim = table.shape
    if dim < 2 or dim % 2:
        return None
    values = table.float()
    zero_rows = tuple((values == 0).all(dim=1).nonzero().flatten().tolist())
    for formula in FORMULAS:
        for first in (0, 1, 2):
            sinusoid = Sinusoid(formula, first, zero_rows)
            if (sinusoid.rows(length, dim) - values).abs().max() < TOLERANCE:
                return sinusoid
    return None


def grid_sinusoid(grid: tuple[int, int], dim: int) -> Tensor:
    """(height * width, D): half of each row says the column, half the line, as in MAE (He et al. 2021)."""
    height, width = grid
    columns, lines = halves(width, dim // 2), halves(height, dim // 2)
    return torch.cat([columns.repeat(height, 1), lines.repeat_interleave(width, dim=0)], dim=1)


def is_grid_sinusoid(cells: Tensor, grid: tuple[int, int]) -> bool:
    """Whether cells (height * width, D) follow ``grid_sinusoid``."""
    dim = cells.shape[1]
    return dim % 4 == 0 and bool((grid_sinusoid(grid, dim) - cells.float()).abs().max() < TOLERANCE)
