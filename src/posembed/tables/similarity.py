"""The similarity of a table's rows, and whether it depends on their distance alone.

For rows P (N, D), the measures depend on diagonals of P P^T. Only ``cosine_matrix`` builds this (N, N) matrix;
the other functions avoid it and can handle 100,000 rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posembed.tables.rows import extreme_scale, float64_rows


def _unit_rows(table: Tensor) -> Tensor:
    """Normalizes rows (N, D) to length 1, float64 on the CPU. A row of zeros stays zero; its cosines are 0."""
    rows = float64_rows(table)
    return F.normalize(rows / extreme_scale(rows, dim=1), dim=1, eps=torch.finfo(torch.float64).tiny)


def _diagonal_means(rows: Tensor) -> Tensor:
    """Returns the mean of each diagonal of P P^T, (N,): entry k is the mean over i of <row i, row i + k>."""
    n = len(rows)
    # Zeros after the rows keep the circular correlation of the FFT from wrapping around.
    power = (torch.fft.rfft(rows, n=2 * n, dim=0).abs() ** 2).sum(dim=1)
    return torch.fft.irfft(power, n=2 * n)[:n] / torch.arange(n, 0, -1)


def cosine_matrix(table: Tensor) -> Tensor:
    """Returns the cosine of every pair of rows (N, D): (N, N) float64.

    Raises:
        ArgumentError: a table that is not finite or has no rows.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.similarity import cosine_matrix
        >>> cosine_matrix(sinusoidal_table(64, 32)).shape
        torch.Size([64, 64])
    """
    rows = _unit_rows(table)
    return rows @ rows.T


def neighbour_cosine(table: Tensor) -> Tensor:
    """Returns the cosine of rows i and i + 1 of (N, D): (N - 1,) float64.

    Raises:
        ArgumentError: a table that is not finite or has no rows.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.similarity import neighbour_cosine
        >>> round(neighbour_cosine(sinusoidal_table(64, 32)).mean().item(), 2)
        0.97
    """
    rows = _unit_rows(table)
    return (rows[:-1] * rows[1:]).sum(dim=1)


def cosine_by_distance(table: Tensor) -> Tensor:
    """Returns the mean cosine by distance of rows (N, D): (N,) float64. Entry k averages the N - k pairs k apart.

    Raises:
        ArgumentError: a table that is not finite or has no rows.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.similarity import cosine_by_distance
        >>> [round(cosine, 2) for cosine in cosine_by_distance(sinusoidal_table(64, 32))[:3].tolist()]
        [1.0, 0.97, 0.9]
    """
    return _diagonal_means(_unit_rows(table))


def toeplitz_residual(table: Tensor) -> float:
    """Returns how much the rows' products depend on more than distance: from 0 (not at all, as for sinusoids) to 1.

    The value is 1 - |T|^2 / |G|^2, where G is P P^T minus the mean of its entries, and T is the closest Toeplitz
    matrix: G's diagonal means (translation invariance: Wang et al., ICLR 2021, "On Position Embeddings in BERT").
    N rows drawn independently in D dimensions give about N / (N + D): only their diagonal is regular.

    Raises:
        ArgumentError: a table that is not finite or has no rows.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.similarity import toeplitz_residual
        >>> round(toeplitz_residual(sinusoidal_table(64, 32)), 4)  # only the distance counts
        0.0
    """
    rows = float64_rows(table)
    rows = rows / extreme_scale(rows)
    n, mean = len(rows), rows.mean(dim=0)
    centred = rows - mean
    if centred.abs().max() <= 4 * torch.finfo(torch.float64).eps:  # all rows are equal, but for rounding
        return 0.0
    # With C the centred rows and u = C mean, G is C C^T + u 1^T + 1 u^T, whose parts are orthogonal.
    u = centred @ mean
    gram_norm = ((centred.T @ centred) ** 2).sum() + 2 * n * (u**2).sum()  # |C C^T| = |C^T C|
    sizes = torch.arange(n, 0, -1, dtype=torch.float64)
    pairs = 2 * sizes
    pairs[0] = n
    of_u = (u.cumsum(dim=0) + u.flip(0).cumsum(dim=0)).flip(0) / sizes
    toeplitz_norm = (pairs * (_diagonal_means(centred) + of_u) ** 2).sum()
    return (1 - toeplitz_norm / gram_norm).clamp(0, 1).item()
