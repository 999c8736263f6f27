"""Measures how similar two tables are up to rotation, and whether a shift of positions is a linear map.

No measure changes when a whole table is rotated, reflected, scaled or translated. Each measure has a floor: its value
for tables that share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError
from posembed.tables.rows import extreme_scale, float64_rows
from posembed.tables.sources import Table, position_rows

SHUFFLES = 8
"""The number of random orders that the floor of the Procrustes distance averages over."""
SHARE = 0.9
"""The share of the variance that the directions of a subspace hold."""
PENALTIES = [10.0**power for power in range(-12, 3)]
"""Ridge penalties, relative to the largest squared singular value of the rows."""


@dataclass(frozen=True)
class Similarity:
    """Three measures of how similar two tables are.

    procrustes_distance: between 0 and 1. It is 0 if rotating, reflecting and scaling one table gives the other.
    cka: between 0 and 1. It is 1 if the dot products of all pairs of rows are the same up to a factor.
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


@checks_arguments
def compare_tables(a: Table, b: Table) -> TableComparison:
    """Compares two tables whose rows stand for the same positions. Their widths may differ.

    Let A and B be the rows minus their mean, scaled to Frobenius norm 1, and U the K left singular vectors that hold
    90% of the variance:

        procrustes_distance   1 - |A^T B|_*, half the smallest |A R - B|^2 over all rotations and reflections R
                              (Schönemann 1966; Ding, Denain and Steinhardt 2021, arXiv:2108.01661)
        cka                   |A^T B|_F^2 / (|A^T A|_F |B^T B|_F)   (Kornblith et al. 2019, arXiv:1905.00414, section 3)
        shared_subspace       |U_a^T U_b|_F^2 / min(K_a, K_b), the mean squared cosine of the principal angles
                              (Björck and Golub 1973)

    ``floor`` holds the means of the measures over random orders of b's rows: exact for the last two measures, over 8
    orders for the first. The cka of random tables is not small if they are wide: with D > N it is above 1/2.

    Args:
        a: a floating-point tensor or array (N, D), (1, N, D) or (N, 1, D), or a layer with a learned table, whose rows
            of positions are then compared.
        b: as ``a``. Its width may differ, but N must be the same.

    Raises:
        ArgumentError: the tables have different lengths, a table has fewer than 3 rows, is not finite or has rows that
            do not vary, or an argument is not a table.

    Examples:
        >>> import torch
        >>> import posembed
        >>> table = posembed.tables.sinusoidal_table(64, 32)
        >>> rotation = torch.linalg.qr(torch.randn(32, 32))[0]
        >>> round(posembed.tables.compare_tables(table, table @ rotation).cka, 6)
        1.0
    """
    with torch.device("cpu"):
        (u, s), (v, t) = (unit_singular_vectors(table) for table in (a, b))
        n = len(u)
        if len(v) != n:
            raise ArgumentError(
                f"expected two tables of one length; got {n} and {len(v)} rows. Pass the rows of the positions in "
                f"both, such as table[:{min(n, len(v))}]"
            )
        k_a, k_b = (int((values.square().cumsum(0) < SHARE).sum()) + 1 for values in (s, t))
        gram_norms = s.square().norm() * t.square().norm()
        generator = torch.Generator().manual_seed(0)
        orders = [torch.randperm(n, generator=generator) for _ in range(SHUFFLES)]
        products = u.T @ v
        # A random order P of centred rows has E[P K P^T] = tr(K) / (N - 1) on the centred rows (Kazi-Aoual et al.
        # 1995).
        floor = Similarity(
            procrustes_distance=sum(procrustes(s, u.T @ v[order], t) for order in orders) / SHUFFLES,
            cka=share(1 / ((n - 1) * gram_norms)),
            shared_subspace=max(k_a, k_b) / (n - 1),
        )
        return TableComparison(
            procrustes_distance=procrustes(s, products, t),
            cka=share((s[:, None] * products * t).square().sum() / gram_norms),
            shared_subspace=share(products[:k_a, :k_b].square().sum() / min(k_a, k_b)),
            floor=floor,
        )


def share(value: Tensor) -> float:
    """Clamps a number to 0 .. 1, because rounding may have moved it outside."""
    return value.clamp(0, 1).item()


def procrustes(s: Tensor, products: Tensor, t: Tensor) -> float:
    """Returns 1 - |A^T B|_* for A = U diag(s) X^T and B = V diag(t) Y^T, from ``products`` U^T V."""
    return share(1 - torch.linalg.svdvals(s[:, None] * products * t).sum())


def unit_singular_vectors(table: Table) -> tuple[Tensor, Tensor]:
    """Returns the left singular vectors (N, K) and the K nonzero singular values, at norm 1, of a table's centred rows.

    Both are float64 on the CPU. Raises ArgumentError if the rows do not vary.
    """
    rows = centred(scaled_rows(table, at_least=3))
    if not rows.any():
        raise ArgumentError("expected tables whose rows differ; got one in which all rows are equal")
    left, values = left_singular(rows)
    return left, values / values.norm()


def scaled_rows(table: Table, *, at_least: int) -> Tensor:
    """Returns the rows (N, D) of positions in float64 on the CPU, divided by one number if squares would overflow."""
    rows = float64_rows(position_rows(table), at_least=at_least)
    return rows / extreme_scale(rows)


def centred(rows: Tensor) -> Tensor:
    """Returns rows (N, D) minus their mean, scaled so that squares do not overflow. Equal rows give exactly 0."""
    moved = rows - rows[0]  # without rounding where the rows are near each other
    moved = moved / extreme_scale(moved)
    return moved - moved.mean(dim=0)


def left_singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the left singular vectors (N, K) of rows, and their K singular values above rounding errors."""
    left, values, _ = torch.linalg.svd(rows, full_matrices=False)
    kept = values > max(rows.shape) * torch.finfo(rows.dtype).eps * values.max()
    return left[:, kept], values[kept]


@checks_arguments
def linear_shift(table: Table, k: int) -> float:
    """Returns R^2 of the best linear function from row p to row p + k, measured on rows that the fit has not seen.

    1 means that a shift is a linear map, as for sinusoids, where it rotates each pair of sine and cosine (Vaswani et
    al. 2017, section 3.5). 0 means that row p predicts row p + k no better than the mean row does. Random rows give 0
    in tables of 24 x 4 and more. In smaller tables, chance can look like a linear map: of 200 random tables of 12 x 1,
    one in twenty gave 0.1 or more. Compare with the mean over a few random orders of the rows,
    ``linear_shift(table[order], k)``.

    The function is affine, fitted to the N - |k| pairs of rows by ridge regression. The errors are leave-one-out
    errors, e / (1 - h) for a residual e and a leverage h (Allen 1974), so that a wide table cannot memorize its own
    rows. The result is the best R^2 over 15 penalties and at least 0. It is NaN if the rows p + k are all equal.

    Args:
        table: as in ``compare_tables``; computed in float64.
        k: the shift in rows. A negative shift predicts earlier rows.

    Raises:
        ArgumentError: there are fewer than 3 pairs of rows, a row is not finite, ``table`` is not a table, or ``k`` is
            not a whole number.

    Examples:
        >>> import posembed
        >>> round(posembed.tables.linear_shift(posembed.tables.sinusoidal_table(64, 16), k=3), 6)
        1.0
    """
    with torch.device("cpu"):
        rows = scaled_rows(table, at_least=abs(k) + 3)
        n = len(rows) - abs(k)
        x, y = (centred(part) for part in ((rows[:n], rows[k:]) if k >= 0 else (rows[-k:], rows[:n])))
        total = y.square().sum()
        if not total:
            return float("nan")
        if not x.any():
            return 0.0
        left, values = left_singular(x)
        power, targets = values.square(), left.T @ y
        rest = y - left @ targets
        outside = (1 - 1 / n - left.square().sum(dim=1)).clamp(min=0)
        best = 0.0
        for penalty in PENALTIES:
            # What the penalty takes from each direction. In a wide table, both the error e and 1 - h are tiny, and
            # their differences from 1 would be lost in rounding.
            lost = penalty * power.max() / (power + penalty * power.max())
            errors = (rest + left @ (lost[:, None] * targets)) / (outside + left.square() @ lost)[:, None]
            best = max(best, 1 - (errors.square().sum() / total).item())
        return min(best, 1.0)
