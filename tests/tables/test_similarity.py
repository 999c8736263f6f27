from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minilm import minilm_positions
from posembed.tables.similarity import cosine_by_distance, cosine_matrix, neighbour_cosine, toeplitz_residual
from tolerance import assert_close

shapes = settings(max_examples=30, deadline=None, derandomize=True)
sizes = {"n": st.integers(1, 40), "dim": st.integers(1, 12)}


def table(n: int, dim: int) -> Tensor:
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(50 * n + dim)) + 0.5


@shapes
@given(**sizes)
def test_cosines(n: int, dim: int) -> None:
    rows = table(n, dim)
    matrix = torch.stack([torch.cosine_similarity(rows[i : i + 1], rows) for i in range(n)])
    assert_close(cosine_matrix(rows), matrix)
    assert_close(neighbour_cosine(rows), matrix.diagonal(1))
    by_distance = torch.stack([matrix.diagonal(k).mean() for k in range(n)])
    assert_close(cosine_by_distance(rows), by_distance, scale=n)  # its sums over all rows come from one transform


@shapes
@given(**sizes)
def test_toeplitz_residual_is_the_distance_to_the_diagonal_means(n: int, dim: int) -> None:
    rows = table(n, dim)
    products = rows @ rows.T
    gram = products - products.mean()
    toeplitz = torch.stack([gram.diagonal(k).mean() for k in range(n)])
    gap = torch.arange(n)
    left_over = gram - toeplitz[(gap[:, None] - gap).abs()]
    expected = ((left_over**2).sum() / (gram**2).sum()).item() if n > 1 else 0
    cancelled = max(1.0, (products.norm() / gram.norm()).item()) if n > 1 else 1.0
    assert_close(toeplitz_residual(rows), expected, scale=cancelled)


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("n", [9, 200])
def test_a_mean_that_all_rows_share_hides_nothing(n: int, spread: float) -> None:
    """As in a table that was trained from zeros, with a bias in every row."""
    rows = 1 + spread * torch.randn(n, 6, dtype=torch.float64)
    gram = (products := rows @ rows.T) - products.mean()
    means = torch.stack([gram.diagonal(k).mean() for k in range(n)])
    pairs = 2 * torch.arange(n, 0, -1)
    pairs[0] = n
    expected = 1 - (pairs * means**2).sum() / (gram**2).sum()
    assert_close(toeplitz_residual(rows), expected.item(), scale=1 / spread)


def test_scale_does_not_matter() -> None:
    rows = table(20, 6)
    assert_close(toeplitz_residual(1e-3 * rows), toeplitz_residual(rows))
    assert toeplitz_residual(torch.zeros(20, 6)) == 0


@pytest.mark.parametrize("n", [1, 7, 20, 3000])
def test_equal_rows_shift_freely(n: int) -> None:
    assert toeplitz_residual(table(1, 6).expand(n, -1)) == 0


def test_a_row_of_zeros_is_like_nothing() -> None:
    rows = table(5, 3)
    rows[2] = 0
    assert cosine_matrix(rows)[2].tolist() == [0] * 5


def test_all_minilm_l6_v2() -> None:
    """Neighbours are alike, and row 0 is like no other; the first 127 rows are the more regular ones."""
    rows = minilm_positions()
    neighbours = neighbour_cosine(rows)
    assert neighbours.median().item() == pytest.approx(0.851, abs=1e-3)
    assert neighbours[0].item() == pytest.approx(0.276, abs=1e-3)
    by_distance = cosine_by_distance(rows)
    assert by_distance[[0, 1, 2]].tolist() == pytest.approx([1, 0.851, 0.592], abs=1e-3)
    assert by_distance[8:].abs().max() < 0.6
    assert toeplitz_residual(rows) == pytest.approx(0.526, abs=1e-3)
    assert toeplitz_residual(rows[1:127]) == pytest.approx(0.309, abs=1e-3)
