"""The number of directions that a table uses, and whether its rows are waves along these directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.tables.rows import extreme_scale, float64_rows

MOST = 0.975
"""The share of the variance that ``directions_for`` uses by default."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular value decomposition of a table's centered rows, with K = min(N, D), on the CPU in float64.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.spectrum import table_spectrum
        >>> spectrum = table_spectrum(sinusoidal_table(64, 32))
        >>> spectrum.singular_values.shape, spectrum.left_vectors.shape
        (torch.Size([32]), torch.Size([64, 32]))
    """

    singular_values: Tensor
    """(K,), descending."""
    left_vectors: Tensor
    """(N, K): column k holds how strongly each position uses direction k."""

    @property
    def variance_shares(self) -> Tensor:
        """The share of the rows' variance along each direction, (K,). Zeros for a constant table."""
        power = (self.singular_values / extreme_scale(self.singular_values)) ** 2
        return power / power.sum().clamp(min=torch.finfo(power.dtype).tiny)

    @property
    def effective_rank(self) -> float:
        """The exp of the entropy of the variance shares (Roy and Vetterli 2007, on s^2). K equal directions give K."""
        shares = self.variance_shares
        return torch.special.entr(shares).sum().exp().item() if shares.any() else 0.0

    def share_of(self, directions: int) -> float:
        """Returns the share of the variance that the strongest ``directions`` hold together."""
        return self.variance_shares[:directions].sum().item()

    def directions_for(self, share: float = MOST) -> int:
        """Returns the smallest number of directions that together hold ``share`` of the variance."""
        held = self.variance_shares.cumsum(0)
        return min(int((held < share).sum()) + 1, len(held)) if held[-1] > 0 else 0

    def __str__(self) -> str:
        few = self.directions_for()
        return (
            f"{few} of {len(self.singular_values)} directions hold {100 * self.share_of(few):.1f} % "
            f"of the variance; effective rank {self.effective_rank:.1f}"
        )


def table_spectrum(table: Tensor) -> Spectrum:
    """Returns the Spectrum of rows (N, D) after removing their mean, which holds no position information.

    Raises:
        ArgumentError: a table that is not finite or has no rows.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.spectrum import table_spectrum
        >>> print(table_spectrum(sinusoidal_table(64, 32)))
        9 of 32 directions hold 97.6 % of the variance; effective rank 7.0
    """
    rows = float64_rows(table)
    scale = extreme_scale(rows)
    rows = rows / scale
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    rounding = max(rows.shape) * torch.finfo(rows.dtype).eps * rows.norm()
    return Spectrum(singular_values=scale * values.where(values > rounding, 0), left_vectors=left)


def fourier_power(vectors: Tensor) -> Tensor:
    """Returns each column's share of power at 0, 1, 2 ... waves per table: (N, K) -> (N // 2 + 1, K).

    Each column sums to 1. A sinusoid has nearly all its power in one bin, or in two adjacent bins if the table
    does not hold a whole number of its waves.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.spectrum import fourier_power, table_spectrum
        >>> fourier_power(table_spectrum(sinusoidal_table(64, 32)).left_vectors).shape
        torch.Size([33, 32])
    """
    n = len(vectors)
    power = torch.fft.rfft(vectors, dim=0).abs() ** 2
    power[1 : (n + 1) // 2] *= 2  # each bin stands for two frequencies, except the first, and the last if N is even
    return power / power.sum(dim=0).clamp(min=torch.finfo(power.dtype).tiny)
