"""How many directions a table uses, and whether they are waves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.tables.rows import float64_rows

MOST = 0.975
"""The share of the variance that a table's directions are counted for, when nothing else is said."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular value decomposition of a table's rows about their mean, K = min(N, D). CPU, float64."""

    singular_values: Tensor
    """(K,), falling."""
    left_vectors: Tensor
    """(N, K): column k says how strongly each position uses direction k."""

    @property
    def variance_shares(self) -> Tensor:
        """(K,): the share of the rows' variance that lies along each direction. Zeros for a constant table."""
        power = self.singular_values**2
        return power / power.sum().clamp(min=torch.finfo(power.dtype).tiny)

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the variance shares: K equal directions give K (Roy and Vetterli 2007, on s^2)."""
        shares = self.variance_shares
        return torch.special.entr(shares).sum().exp().item() if shares.any() else 0.0

    def share_of(self, directions: int) -> float:
        """The share of the variance that the strongest ``directions`` hold together."""
        return self.variance_shares[:directions].sum().item()

    def directions_for(self, share: float = MOST) -> int:
        """The fewest directions that together hold ``share`` of the variance."""
        held = self.variance_shares.cumsum(0)
        return min(int((held < share).sum()) + 1, len(held)) if held[-1] > 0 else 0

    def __str__(self) -> str:
        few = self.directions_for()
        return (
            f"{few} of {len(self.singular_values)} directions hold {100 * self.share_of(few):.1f} % "
            f"of the variance; effective rank {self.effective_rank:.1f}"
        )


def table_spectrum(table: Tensor) -> Spectrum:
    """Rows (N, D) -> their Spectrum. The mean row is taken off first: it says nothing about position."""
    rows = float64_rows(table)
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    rounding = max(rows.shape) * torch.finfo(rows.dtype).eps * rows.norm()
    return Spectrum(singular_values=values.where(values > rounding, 0), left_vectors=left)


def fourier_power(vectors: Tensor) -> Tensor:
    """Columns (N, K) -> (N // 2 + 1, K): how each column's power divides over 0, 1, 2 ... waves per table.

    Each column sums to 1. A column that is a sinusoid has nearly all of it in one bin, or in two beside each other
    where its waves do not fit the table a whole number of times.
    """
    n = len(vectors)
    power = torch.fft.rfft(vectors, dim=0).abs() ** 2
    power[1 : (n + 1) // 2] *= 2  # every bin but the first, and the last of an even N, stands for two
    return power / power.sum(dim=0).clamp(min=torch.finfo(power.dtype).tiny)


def wave_share(vectors: Tensor, *, bins: int = 3) -> Tensor:
    """Columns (N, K) -> (K,): the share of power in the ``bins`` strongest bins; near 1 for a wave.

    Three bins hold at least 85 % of a sinusoid of any frequency; noise leaves about 3 ln(N/2) / (N/2) in them.
    """
    power = fourier_power(vectors)
    return power.topk(min(bins, len(power)), dim=0).values.sum(dim=0)
