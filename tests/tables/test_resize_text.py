"""Each method for positions in a line: its published values, its formula in float64, and what it must keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracles_resize import stretched
from posembed.errors import ArgumentError
from posembed.tables.resize_methods import (
    TEXT_METHODS,
    hierarchical,
    interpolate,
    mean_row,
    random_rows,
    stretch,
    tile,
    truncate,
)
from together import together
from tolerance import assert_close

shapes = settings(max_examples=40, deadline=None, derandomize=True)
lengths = st.integers(1, 70)


def table(n: int, dim: int = 5) -> Tensor:
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


# --- formulas ----------------------------------------------------------------------------------------------------


@shapes
@given(n=lengths, length=lengths, mode=st.sampled_from(["linear", "cubic"]), align_corners=st.booleans())
def test_interpolate_is_its_matrix(n: int, length: int, mode: str, align_corners: bool) -> None:
    rows = table(n)
    expected = stretched(n, length, mode, align_corners=align_corners) @ rows
    assert_close(
        interpolate(rows, length, mode=mode, align_corners=align_corners), expected, scale=n * rows.abs().max().item()
    )


@shapes
@given(n=st.integers(2, 40), length=lengths, keep=st.integers(0, 20))
def test_stretch_reads_along_the_line_through_the_rows(n: int, length: int, keep: int) -> None:
    keep = min(keep, n - 2, length - 1)
    rows = table(n)
    expected = [rows[k] for k in range(keep)]
    for k in range(length - keep):
        place = keep + k * (n - keep) / (length - keep)
        left = min(int(place + 1e-12), n - 2)
        expected.append(rows[left] + (place - left) * (rows[left + 1] - rows[left]))
    assert_close(stretch(rows, length, keep=keep), torch.stack(expected), depth=2)


@shapes
@given(n=st.integers(1, 12), data=st.data(), alpha=st.floats(0.05, 0.45))
def test_hierarchical_is_its_formula(n: int, data: st.DataObject, alpha: float) -> None:
    length = data.draw(st.integers(1, n * n))
    p = table(n)
    u = [(p[i] - alpha * p[0]) / (1 - alpha) for i in range(n)]
    expected = torch.stack([alpha * u[k // n] + (1 - alpha) * u[k % n] for k in range(length)])
    assert_close(hierarchical(p, length, alpha=alpha), expected)


def test_open_clip_is_pytorchs_own_linear_interpolation() -> None:
    rows = table(77).float()
    expected = F.interpolate(rows.T[None], size=154, mode="linear", align_corners=False)[0].T
    assert_close(TEXT_METHODS["open-clip"](rows, 154), expected)


def test_random_rows_have_the_tables_spread_and_repeat_with_their_seed() -> None:
    rows = 0.3 * table(50, 64)
    new = random_rows(rows, 2050)
    assert torch.equal(new[:50], rows)
    assert new[50:].std().item() == pytest.approx(rows.std().item(), rel=0.02)
    assert random_rows(rows, 2050, std=0.01)[50:].std().item() == pytest.approx(0.01, rel=0.02)
    assert torch.equal(new, random_rows(rows, 2050, seed=0))
    assert not torch.equal(new, random_rows(rows, 2050, seed=1))


def test_mean_row_fills_with_the_mean() -> None:
    rows = table(6)
    new = mean_row(rows, 9)
    assert torch.equal(new[:6], rows)
    assert_close(new[6:], rows.mean(dim=0).expand(3, -1))


# --- what every method must do -----------------------------------------------------------------------------------


@together(
    ("name", "length"), [(name, n) for name in TEXT_METHODS for n in (21, 32, 45) if (name, n) != ("truncate", 45)]
)
def test_every_method_gives_the_length_and_leaves_its_input(name: str, length: int) -> None:
    rows = table(32)
    before = rows.clone()
    new = TEXT_METHODS[name](rows, length)
    assert new.shape == (length, 5)
    assert new.dtype == rows.dtype
    new.mul_(2)
    assert torch.equal(rows, before)


@together("name", ["tile", "hierarchical", "random", "mean", "longformer", "bert4keras"])
@together("length", [1, 20, 32, 33, 100])
def test_methods_that_keep_the_old_rows_keep_their_bits(name: str, length: int) -> None:
    rows = table(32).float()
    kept = min(length, 32)
    assert torch.equal(TEXT_METHODS[name](rows, length)[:kept], rows[:kept])


@pytest.mark.parametrize("name", ["linear", "linear-corners", "cubic", "cubic-corners", "stretch"])
def test_methods_that_move_the_rows_keep_a_table_of_the_same_length(name: str) -> None:
    rows = table(32).float()
    assert_close(TEXT_METHODS[name](rows, 32), rows)


@pytest.mark.parametrize("name", ["linear-corners", "cubic-corners"])
def test_with_corners_aligned_there_and_back_is_the_identity(name: str) -> None:
    rows = table(9)
    there = TEXT_METHODS[name](rows, 17)  # every other new row is an old one
    assert_close(there[::2], rows)
    assert_close(TEXT_METHODS[name](there, 9), rows)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_truncate_does_not_lengthen() -> None:
    with pytest.raises(ArgumentError, match=r"existing 10 rows; got a length of 11.*tile"):
        truncate(table(10), 11)


def test_hierarchical_ends_at_the_square() -> None:
    assert hierarchical(table(10), 100).shape == (100, 5)
    with pytest.raises(ArgumentError, match=r"10 x 10 = 100; got a length of 101"):
        hierarchical(table(10), 101)


@pytest.mark.parametrize("alpha", [0, 0.5, 1, -0.1])
def test_hierarchical_wants_an_alpha_that_parts_the_digits(alpha: float) -> None:
    with pytest.raises(ArgumentError, match="alpha"):
        hierarchical(table(10), 20, alpha=alpha)


def test_stretch_needs_rows_to_stretch_and_room_for_them() -> None:
    with pytest.raises(ArgumentError, match="got keep=20 and 21 rows"):
        stretch(table(21), 40)
    with pytest.raises(ArgumentError, match=r"than the 20 it keeps; got a length of 20.*truncate"):
        stretch(table(77), 20)
    with pytest.raises(ArgumentError, match="got keep=-1"):
        stretch(table(77), 40, keep=-1)


def test_interpolate_knows_two_modes() -> None:
    with pytest.raises(ArgumentError, match="'quintic'"):
        interpolate(table(4), 8, mode="quintic")


def test_tile_of_a_tile_is_the_longer_tile() -> None:
    rows = table(7)
    assert torch.equal(tile(tile(rows, 21), 50), tile(rows, 50))
