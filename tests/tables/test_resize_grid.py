"""Each method for grids: its published values and its formula in float64, square or not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracles_resize import antialiased, sampled, stretched
from posembed.tables.resize_methods import GRID_METHODS, dinov2_grid, interpolate_grid
from together import together
from tolerance import assert_close

shapes = settings(max_examples=30, deadline=None, derandomize=True)
sides = st.integers(1, 24)
grids = st.tuples(sides, sides)


def cells(height: int, width: int, dim: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(100 * height + width)
    return torch.randn(height, width, dim, dtype=torch.float64, generator=generator)


def separable(rows: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return torch.einsum("ih,hwd,jw->ijd", down, rows, across)


@pytest.mark.parametrize("image", [546, 602, 1092, 1204, 1610, 1722])
def test_dinov2_reaches_the_image_sizes_that_a_bare_scale_factor_misses(image: int) -> None:
    side = image // 14
    assert dinov2_grid(torch.zeros(37, 37, 1), (side, side)).shape == (side, side, 1)
    bare = torch.nn.functional.interpolate(torch.zeros(1, 1, 37, 37), scale_factor=side / 37, mode="bicubic")
    assert bare.shape[-1] == side - 1


# --- formulas ----------------------------------------------------------------------------------------------------


@shapes
@given(old=grids, new=grids, kind=st.sampled_from(["linear", "cubic"]), antialias=st.booleans())
def test_interpolation_is_a_matrix_down_and_one_across(
    old: tuple[int, int], new: tuple[int, int], kind: str, antialias: bool
) -> None:
    rows = cells(*old)
    matrix = antialiased if antialias else stretched
    expected = separable(rows, matrix(old[0], new[0], kind), matrix(old[1], new[1], kind))
    actual = interpolate_grid(rows, new, mode=f"bi{kind}", antialias=antialias)
    assert_close(actual, expected, depth=2)


@shapes
@given(old=grids, new=grids)
def test_dinov2_samples_at_its_own_scale(old: tuple[int, int], new: tuple[int, int]) -> None:
    rows = cells(*old)
    down, across = (
        sampled(m, [(k + 0.5) * m / (n + 0.1) - 0.5 for k in range(n)], "cubic") for m, n in zip(old, new, strict=True)
    )
    assert_close(dinov2_grid(rows, new), separable(rows, down, across), depth=2)


# --- what every method must do -----------------------------------------------------------------------------------


@together("name", GRID_METHODS)
@together(("old", "new"), [((7, 28), (14, 14)), ((4, 9), (8, 3)), ((5, 5), (5, 10))])
def test_every_method_gives_the_grid_and_leaves_its_input(
    name: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    rows = cells(*old)
    before = rows.clone()
    resized = GRID_METHODS[name](rows, new)
    assert resized.shape == (*new, 3)
    resized.mul_(2)
    assert torch.equal(rows, before)


@together("name", GRID_METHODS)
def test_every_method_keeps_a_constant(name: str) -> None:
    assert_close(GRID_METHODS[name](torch.ones(3, 8, 2), (7, 5)), torch.ones(7, 5, 2))


@together("method", GRID_METHODS)
@together("grid", [(4, 1), (12, 1), (1, 4), (1, 1), (5, 3)])
def test_lying_down_is_standing_up(method: str, grid: tuple[int, int]) -> None:
    """Rows and columns are treated alike, where the grid is one wide as well."""
    rows = cells(6, 2)
    turned = GRID_METHODS[method](rows.transpose(0, 1), grid[::-1]).transpose(0, 1)
    assert_close(GRID_METHODS[method](rows, grid), turned)
    if grid[0] > 1:
        assert not torch.equal(turned[0], turned[-1])
