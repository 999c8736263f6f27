"""Measures how similar two tables are up to rotation, and whether a shift of positions is a linear map.

No measure changes when a whole table is rotated, reflected, scaled or shifted. Each measure has a floor: its value for
tables that share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.tables.layout import float64_rows

SHUFFLES = 8
"""The number of random orders that the floor of the Procrustes distance averages over."""
SHARE = 0.9
"""The share of the variance that the directions of a subspace hold."""
PENALTIES = torch.logspace(-12, 2, 15, dtype=torch.float64).tolist()
"""Ridge penalties, relative to the largest squared singular value of the rows."""


@dataclass(frozen=True)
class Similarity:
    """Three measures of how similar two tables are.

    procrustes_distance: between 0, if rotating, reflecting and scaling one table gives the other, and 1.
    cka: between 0 and 1, if the products of all pairs of rows are the same up to a factor.
    shared_subspace: the share of the smaller subspace that lies in the larger one, between 0 and 1. The subspace of a
        table is spanned by the fewest directions that hold 90% of its variance.
    """

    procrustes_distance: float
    cka: float
    shared_subspace: float


@dataclass(frozen=True)
class TableComparison(Similarity):
    """The similarity of two tables, and ``floor``: the mean of each measure over random orders of the rows."""

    floor: Similarity


def compare_tables(a: Tensor, b: Tensor) -> TableComparison:
    """Compares two tables whose rows stand for the same positions. Their widths may differ.

    With A and B the rows minus their mean, scaled to a Frobenius norm of 1, and U the left singular vectors of their
    strongest directions:

        procrustes_distance   1 - |A^T B|_*, half the least |A R - B|^2 over all rotations and reflections R
                              (Schönemann 1966; Ding, Denain and Steinhardt 2021, arXiv:2108.01661)
        cka                   |A^T B|_F^2 / (|A^T A|_F |B^T B|_F)   (Kornblith et al. 2019, arXiv:1905.00414, section 3)
        shared_subspace       |U_a^T U_b|_F^2 / min(K_a, K_b), the mean squared cosine of the principal angles
                              (Björck and Golub 1973)

    The floor is the mean over random orders of b's rows: exact for the last two measures, over 8 orders for the first.
    The cka of unrelated tables is not small if they are wide: with D > N it is above 1/2.

    Args:
        a: (N, D), (1, N, D) or (N, 1, D), floating.
        b: the same with any width. N must be the same.

    Raises:
        ArgumentError: tables of different lengths, of fewer than 3 rows, not finite, or whose rows do not vary.

    Examples:
        >>> import torch
        >>> import posembed
        >>> table = posembed.sinusoidal_table(64, 32)
        >>> rotation = torch.linalg.qr(torch.randn(32, 32))[0]
        >>> round(posembed.compare_tables(table, table @ rotation).cka, 6)
        1.0
    """
    (u, s), (v, t) = (unit_singular_vectors(table) for table in (a, b))
    n = len(u)
    if len(v) != n:
        raise ArgumentError(
            f"expected two tables of one length; got {n} and {len(v)} rows. Pass the rows of the positions in both, "
            f"such as table[:{min(n, len(v))}]"
        )
    k_a, k_b = (int((values.square().cumsum(0) < SHARE).sum()) + 1 for values in (s, t))
    gram_norms = s.square().norm() * t.square().norm()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) for _ in range(SHUFFLES)]
    products = u.T @ v
    # A random order P of centred rows has E[P K P^T] = tr(K) / (N - 1) on the centred rows (Kazi-Aoual et al. 1995).
    floor = Similarity(
        procrustes_distance=sum(procrustes(s, u.T @ v[order], t) for order in orders) / SHUFFLES,
        cka=(1 / ((n - 1) * gram_norms)).item(),
        shared_subspace=max(k_a, k_b) / (n - 1),
    )
    return TableComparison(
        procrustes_distance=procrustes(s, products, t),
        cka=((s[:, None] * products * t).square().sum() / gram_norms).item(),
        shared_subspace=(products[:k_a, :k_b].square().sum() / min(k_a, k_b)).item(),
        floor=floor,
    )


def procrustes(s: Tensor, products: Tensor, t: Tensor) -> float:
    """Returns 1 - |A^T B|_* for A = U diag(s) X^T and B = V diag(t) Y^T, from ``products`` U^T V."""
    return max(1 - torch.linalg.svdvals(s[:, None] * products * t).sum().item(), 0.0)


def unit_singular_vectors(table: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the left singular vectors (N, K) and the K nonzero singular values of a table's centred rows, at norm 1.

    Float64 on the CPU. Raises ArgumentError if the rows do not vary.
    """
    rows = float64_rows(table, at_least=3)
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    kept = values > max(rows.shape) * torch.finfo(rows.dtype).eps * rows.norm()
    if not kept.any():
        raise ArgumentError("expected tables whose rows differ; got one in which all rows are equal")
    return left[:, kept], values[kept] / values[kept].norm()


def linear_shift(table: Tensor, k: int) -> float:
    """Returns how well row p + k is a linear function of row p: R^2 over all p, each row predicted by the others.

    Sinusoids give 1: a shift rotates each pair of sine and cosine (Vaswani et al. 2017, section 3.5). Random rows give
    the floor, which is 0. To compute the floor of a table, shuffle its rows: ``linear_shift(table[order], k)``.

    The function is affine, fitted to the N - |k| pairs of rows by ridge regression. R^2 is 1 minus the sum of squared
    errors divided by the sum for the mean row. The errors are leave-one-out errors, e / (1 - h) (Allen 1974), so that a
    wide table cannot memorize its own rows. The result is the best of 15 penalties and at least 0, the value of
    predicting the mean. It is NaN if the rows p + k do not vary.

    Args:
        table: (N, D), (1, N, D) or (N, 1, D), floating; computed in float64.
        k: the shift in rows. A negative one predicts earlier rows.

    Raises:
        ArgumentError: fewer than 3 pairs of rows, rows that are not finite, or a k that is no whole number.

    Examples:
        >>> import posembed
        >>> round(posembed.linear_shift(posembed.sinusoidal_table(64, 16), k=3), 6)
        1.0
    """
    if isinstance(k, bool) or not isinstance(k, int):
        raise ArgumentError(f"k is a number of rows; got {k!r}")
    rows = float64_rows(table, at_least=abs(k) + 3)
    x, y = (rows[: len(rows) - k], rows[k:]) if k >= 0 else (rows[-k:], rows[:k])
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    total = y.square().sum()
    if total <= torch.finfo(rows.dtype).eps * rows.square().sum():
        return float("nan")
    left, values, _ = torch.linalg.svd(x, full_matrices=False)
    power, targets = values.square(), left.T @ y
    best = 0.0
    for penalty in PENALTIES:
        shrunk = power / (power + penalty * power.max().clamp(min=torch.finfo(rows.dtype).tiny))
        errors = y - left @ (shrunk[:, None] * targets)
        leverage = 1 / len(x) + (left.square() * shrunk).sum(dim=1)
        best = max(best, 1 - ((errors / (1 - leverage)[:, None]).square().sum() / total).item())
    return best
