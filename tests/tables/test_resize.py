"""resize_table: which rows it touches, in which dtype, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.tables.health import check_table
from posembed.tables.layout import TableLayout
from posembed.tables.resize import leading_rows_kept, resize_table
from posembed.tables.resize_methods import GRID_METHODS, TEXT_METHODS, hierarchical, stretch, tile
from together import together
from tolerance import assert_same, close

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
LINE = TableLayout(reserved=2, prefix=1, tail=1)
GRID = TableLayout(prefix=2, grid=(4, 9), tail=1)


def table(n: int, dim: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(n)).to(dtype)


# --- rows that are not positions ---------------------------------------------------------------------------------


@together(
    ("name", "layout", "size"),
    [(name, LINE, {"length": 25}) for name in TEXT_METHODS] + [(name, GRID, {"grid": (5, 5)}) for name in GRID_METHODS],
)
@together("dtype", DTYPES)
def test_only_positions_change(name: str, layout: TableLayout, size: dict[str, Any], dtype: torch.dtype) -> None:
    old = table(layout.rows(36), dtype=dtype)
    new = resize_table(old, method=name, layout=layout, **size)
    assert (new.shape, new.dtype) == ((layout.front + 25 + layout.tail, 6), dtype)
    assert torch.equal(new[: layout.front], old[: layout.front])
    assert torch.equal(new[-1], old[-1])


def test_longformer_from_roberta() -> None:
    ramp = torch.arange(514.0)[:, None]
    new = resize_table(ramp, length=4096, method="longformer", layout=TableLayout.roberta())
    assert new[:, 0].tolist() == [0, 1] + [2 + k % 512 for k in range(4096)]


def test_a_parameter_of_shape_one_n_d_keeps_it() -> None:
    vit = torch.nn.Parameter(table(17)[None])
    new = resize_table(vit, grid=(2, 3), layout=TableLayout.VIT.on_grid(4, 4))
    assert new.shape == (1, 7, 6)
    assert not isinstance(new, torch.nn.Parameter)
    assert torch.equal(new[0], resize_table(vit[0], grid=(2, 3), layout=TableLayout.VIT.on_grid(4, 4)))


def test_the_same_number_of_cells_in_another_shape_is_another_grid() -> None:
    old = table(196)
    new = resize_table(old, grid=(14, 14), layout=TableLayout(grid=(7, 28)))
    assert new.shape == old.shape
    assert not close(new, old)


@together(
    ("name", "other"),
    [("timm", "bicubic-antialias"), ("open-clip", "bicubic-antialias"), ("vit", "bicubic"),
     ("siglip2", "bilinear-antialias"), ("qwen3-vl", "bilinear-corners")],
)  # fmt: skip
def test_other_names_of_methods_for_grids(name: str, other: str) -> None:
    """test_conformance.py compares the methods with these libraries."""
    cells = table(36).unflatten(0, (4, 9))
    for size in ((5, 5), (8, 18)):
        assert torch.equal(GRID_METHODS[name](cells, size), GRID_METHODS[other](cells, size))


def test_other_names_of_methods_for_lines() -> None:
    rows = table(77)
    same = {
        "longformer": tile(rows, 248),
        "long-clip": stretch(rows, 248, keep=20),
        "bert4keras": hierarchical(rows, 248, alpha=0.4),
    }
    for name, expected in same.items():
        assert torch.equal(TEXT_METHODS[name](rows, 248), expected)


# --- numbers -----------------------------------------------------------------------------------------------------


@together("dtype", [torch.bfloat16, torch.float16])
@together("method", ["linear", "cubic-corners", "hierarchical", "stretch", "mean"])
def test_narrow_tables_are_computed_in_float32_and_rounded_once(dtype: torch.dtype, method: str) -> None:
    old = table(40, dtype=dtype)
    expected = resize_table(old.float(), length=77, method=method)
    assert torch.equal(resize_table(old, length=77, method=method), expected.to(dtype))


def test_float64_tables_are_computed_in_float64() -> None:
    old = table(40, dtype=torch.float64)
    new = resize_table(old, length=77, method="linear")
    assert (new - resize_table(old.float(), length=77, method="linear")).abs().max() > 0
    assert_same(new, TEXT_METHODS["linear"](old, 77))


@together(
    "resize",
    [partial(resize_table, length=40, method=name) for name in TEXT_METHODS]
    + [partial(resize_table, grid=(5, 8), method=name, layout=TableLayout(grid=(5, 8))) for name in GRID_METHODS],
)
def test_the_size_it_has_gives_a_copy(resize: Callable[[Tensor], Tensor]) -> None:
    old = table(40)
    new = resize(old)
    assert torch.equal(new, old)
    assert new.data_ptr() != old.data_ptr()


def test_defaults_are_tile_and_antialiased_bicubic() -> None:
    old = table(40)
    assert torch.equal(resize_table(old, length=90), resize_table(old, length=90, method="tile"))
    assert torch.equal(resize_table(old, length=9), resize_table(old, length=9, method="truncate"))
    to_grid = partial(resize_table, old, grid=(3, 11), layout=TableLayout(grid=(5, 8)))
    assert torch.equal(to_grid(), to_grid(method="timm"))


def test_a_method_may_be_a_function() -> None:
    old = table(10)
    new = resize_table(old, length=50, method=partial(hierarchical, alpha=0.2))
    assert torch.equal(new, hierarchical(old, 50, alpha=0.2))


def test_gradients_reach_every_row_that_was_read() -> None:
    old = table(44, dtype=torch.float64).requires_grad_()
    torch.autograd.gradcheck(lambda t: resize_table(t, length=60, method="cubic", layout=LINE), old)
    images = table(39, dim=2, dtype=torch.float64).requires_grad_()
    torch.autograd.gradcheck(lambda t: resize_table(t, grid=(3, 5), layout=GRID), images)


# --- rows kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "length", "kept"),
    [("tile", 90, 40), ("hierarchical", 90, 40), ("stretch", 90, 21), ("linear", 90, 1), ("truncate", 8, 8)],
)
def test_leading_rows_kept_are_counted(method: str, length: int, kept: int) -> None:
    old = table(40)
    assert leading_rows_kept(old, resize_table(old, length=length, method=method)) == kept


def test_leading_rows_kept_compares_bits() -> None:
    old = torch.zeros(3, 2)
    assert leading_rows_kept(old, torch.tensor([[0.0, 0], [0, -0.0], [0, 0]])) == 1
    broken = torch.full((2, 2), float("nan"))
    assert leading_rows_kept(broken, broken.clone()) == 2
    assert leading_rows_kept(old[None], old) == 3
    for other in (old.bfloat16(), torch.zeros(3, 4)):
        with pytest.raises(ArgumentError, match="one width and dtype"):
            leading_rows_kept(old, other)


# --- refusals ----------------------------------------------------------------------------------------------------


@together(
    ("arguments", "message"),
    [
        ({}, "one of length"),
        ({"length": 5, "grid": (1, 5)}, "one of length"),
        ({"length": 0}, "at least 1; got 0"),
        ({"length": 7.5}, "got 7.5"),
        ({"length": 50, "method": "stretchy"}, "'stretchy'; choose one of truncate, tile"),
        ({"length": 50, "method": "bicubic"}, "line is called 'bicubic'"),
        ({"length": 50, "method": "truncate"}, "a method that makes new rows"),
        ({"length": 50, "method": lambda rows, length: rows}, r"\(50, 6\); got \(40, 6\)"),
        ({"length": 50, "layout": TableLayout(grid=(5, 8))}, r"Pass grid=\(height, width\)"),
        ({"length": 50, "layout": TableLayout(reserved=40)}, "no row left for a position"),
        ({"grid": (5, 8)}, r"40 positions.*on_grid\(height, width\)"),
        ({"grid": (5, 8), "layout": TableLayout(grid=(6, 8))}, "48 positions"),
        ({"grid": (0, 8), "layout": TableLayout(grid=(5, 8))}, r"got \(0, 8\)"),
        ({"grid": 8, "layout": TableLayout(grid=(5, 8))}, "got 8"),
        ({"grid": (5, 5, 5), "layout": TableLayout(grid=(5, 8))}, r"got \(5, 5, 5\)"),
        ({"grid": (5, 9), "method": "tile", "layout": TableLayout(grid=(5, 8))}, "grid is called 'tile'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_remedy(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resize_table(table(40), **arguments)


@pytest.mark.parametrize("shape", [(40,), (2, 40, 6), (2, 1, 40, 6), (1, 40, 1, 6), (0, 6), (40, 0)])
def test_other_shapes_are_not_tables(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"\(N, D\), \(1, N, D\) or \(N, 1, D\)"):
        resize_table(torch.zeros(shape), length=50)
    with pytest.raises(ArgumentError, match=r"torch\.int64"):
        resize_table(torch.zeros(40, 6, dtype=torch.int64), length=50)


@together("length", [13, 40, 57])
@together(
    ("shape", "axis"), [((1, 40, 6), 1), ((40, 1, 6), 0), ((1, 1, 6), 1), ((1, 1, 40, 6), 2), ((1, 1, 1, 1, 40, 6), 4)]
)
def test_axes_of_one_stay_where_they_are(shape: tuple[int, ...], axis: int, length: int) -> None:
    old = torch.randn(shape)
    rows = old.reshape(-1, 6)
    new = resize_table(old, length=length, method="linear")
    assert new.shape == (*shape[:axis], length, *shape[axis + 1 :])
    assert torch.equal(new.reshape(-1, 6), resize_table(rows, length=length, method="linear"))
    assert check_table(old) == check_table(rows)
    assert leading_rows_kept(old, new) == leading_rows_kept(rows, new)
