"""Tables along axes: every way of storing them, and every kind of axis, against the authors' own code."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from posembed import resize_table
from posembed.errors import ArgumentError
from posembed.tables import Axis, TableLayout, leading_rows_kept
from posembed.tables.resize_methods import DIFFERENCE_GRID_METHODS, DIFFERENCE_METHODS, LINE_METHODS, groups, kernels_of
from timm_peer import vision_transformer
from together import together
from tolerance import assert_close

WINDOW = (Axis("height", 5, relative=True), Axis("width", 4, relative=True))
VIDEO = (Axis("time", 3), Axis("height", 4), Axis("width", 5))
SOUND = (Axis("frequency", 3), Axis("time", 6))
# (layout, the shape of the stored tensor)
STORED: list[tuple[TableLayout, tuple[int, ...]]] = [
    (TableLayout(axes=WINDOW, tail=3), (9 * 7 + 3, 2)),
    (TableLayout(axes=WINDOW, dims=(1, 2)), (2, 9, 7)),
    (TableLayout(axes=VIDEO, prefix=1), (1, 61, 6)),
    (TableLayout(axes=SOUND, prefix=2), (1, 20, 6)),
    (TableLayout(grid=(4, 5), dims=(1, 2)), (1, 4, 5, 6)),
    (TableLayout(grid=(4, 5), dims=(2, 3)), (1, 6, 4, 5)),
    (TableLayout(grid=(4, 5), prefix=1, tail=2, dims=(2,)), (3, 1, 23, 6)),
    (TableLayout(axes=(Axis("height", 6, relative=True),)), (11, 4)),
    (TableLayout(axes=(Axis("height", 3, relative=True, signed=False),) * 1, dims=(1,)), (4, 3)),
    (TableLayout(axes=(Axis("time", 7),)), (1, 7, 4)),
]


def table(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


@together(("layout", "shape"), STORED)
def test_rows_in_and_stored_are_inverse(layout: TableLayout, shape: tuple[int, ...]) -> None:
    stored = table(shape)
    rows = layout.rows_in(stored)
    assert len(rows) == layout.rows(math.prod(layout.shape))
    assert torch.equal(layout.stored(rows, like=stored), stored)


@together(("layout", "shape"), STORED)
@together("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_each_axis_is_resized_on_its_own(layout: TableLayout, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The same sizes are the identity, special rows stay bit for bit, and a column does not depend on the others."""
    stored = table(shape).to(dtype)
    same = {axis.name: axis.size for axis in layout.axes}
    assert torch.equal(resize_table(stored, sizes=same, layout=layout), stored)
    larger = {name: size + 3 for name, size in same.items()}
    new, new_layout = resize_table(stored, sizes=larger, layout=layout), layout.resized(larger)
    assert new.dtype == dtype
    old_front, _, old_tail = layout.split(layout.rows_in(stored))
    front, cells, tail = new_layout.split(new_layout.rows_in(new))
    assert torch.equal(front, old_front)
    assert torch.equal(tail, old_tail)
    assert cells.unflatten(0, new_layout.shape).isfinite().all()
    column = layout.stored(layout.rows_in(stored)[:, :1].expand(-1, layout.rows_in(stored).shape[1]), like=stored)
    alone = new_layout.rows_in(resize_table(column, sizes=larger, layout=layout))
    assert_close(alone[:, 0], new_layout.rows_in(new)[:, 0])


@pytest.mark.parametrize(
    ("layout", "methods"),
    [
        (TableLayout(axes=(Axis("height", 9, relative=True),)), DIFFERENCE_METHODS),
        (TableLayout(axes=WINDOW), DIFFERENCE_GRID_METHODS),
        (
            TableLayout(axes=(Axis("time", 9),)),
            {name: LINE_METHODS[name] for name in LINE_METHODS if name != "truncate"},
        ),
    ],
)
def test_constant_rows_stay_constant(layout: TableLayout, methods: dict[str, object]) -> None:
    larger = {axis.name: 2 * axis.size + 1 for axis in layout.axes}
    rows = torch.full((math.prod(layout.shape), 3), 2.5)
    for name in methods:
        new = resize_table(rows, sizes=larger, layout=layout, method=name)
        assert_close(new, torch.full_like(new, 2.5))


@pytest.mark.parametrize("name", DIFFERENCE_METHODS)
def test_the_difference_zero_stays_in_the_middle(name: str) -> None:
    """Symmetric biases stay symmetric, and those of opposite sign stay opposite."""
    layout = TableLayout(axes=(Axis("height", 8, relative=True),))
    distance = torch.arange(-7, 8, dtype=torch.float64)
    for size in (5, 13, 20):
        even = resize_table(distance.abs()[:, None], sizes={"height": size}, layout=layout, method=name)
        assert_close(even, even.flip(0))
        odd = resize_table(distance[:, None], sizes={"height": size}, layout=layout, method=name)
        assert_close(odd, -odd.flip(0))
        assert_close(odd[size - 1].item(), 0)


def test_extend_gives_a_model_that_limits_differences_the_same_answers() -> None:
    layout, rows = TableLayout(axes=(Axis("height", 6, relative=True),)), table((11, 4))
    for size in (9, 17, 4):
        new = resize_table(rows, sizes={"height": size}, layout=layout, method="extend")
        difference = torch.arange(-(size - 1), size)
        assert torch.equal(new, rows[difference.clamp(-5, 5) + 5])


def test_time_and_image_are_resized_apart() -> None:
    layout = TableLayout(axes=VIDEO, prefix=1)
    rows = table((61, 6)).double()
    longer = layout.resized({"time": 7})
    new = resize_table(rows, sizes={"time": 7}, layout=layout)[1:].unflatten(0, longer.shape)
    each = rows[1:].unflatten(0, layout.shape)
    for y in range(4):
        for x in range(5):
            assert_close(new[:, y, x], LINE_METHODS["linear"](each[:, y, x], 7))
    larger = resize_table(rows, sizes={"height": 8, "width": 6}, layout=layout)[1:].unflatten(0, (3, 8, 6))
    for frame in range(3):
        expected = resize_table(each[frame].flatten(0, 1), grid=(8, 6), layout=TableLayout(grid=(4, 5)))
        assert_close(larger[frame].flatten(0, 1), expected)
    assert groups(layout.axes) == [slice(0, 1), slice(1, 3)]


# --- the authors' own code


def test_one_relative_axis_as_sam_does() -> None:
    from transformers.models.sam.modeling_sam import SamVisionAttention

    layout, rows = TableLayout(axes=(Axis("height", 8, relative=True),)), table((15, 4))
    for size in (8, 12, 5):
        read = SamVisionAttention.get_rel_pos(None, size, size, rows)  # (size, size, D), by query and key
        new = resize_table(rows, sizes={"height": size}, layout=layout, method="sam")
        index = torch.arange(size)[:, None] - torch.arange(size)[None] + size - 1
        assert_close(new[index], read)


@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 7), (14, 24), (2, 3)])
def test_a_relative_grid_as_timm_does(old: int, new: int) -> None:
    vision_transformer()
    from timm import layers as timm

    window = tuple(Axis(name, old, relative=True) for name in ("height", "width"))
    sizes = {"height": new, "width": new}
    for extra in (0, 3):
        layout, rows = TableLayout(axes=window, tail=extra), table(((2 * old - 1) ** 2 + extra, 3))
        shape = ((2 * new - 1) ** 2 + extra, 3)
        simple = timm.resize_rel_pos_bias_table_simple(rows, (new, new), shape)
        assert_close(resize_table(rows, sizes=sizes, layout=layout, method="swin"), simple)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch, about timm's indexing
            spaced = timm.resize_rel_pos_bias_table(rows, (new, new), shape)
        geometric = resize_table(rows, sizes=sizes, layout=layout, method="timm")
        assert_close(geometric, spaced)  # timm computes the spacing in float32
    apart = TableLayout(axes=window, dims=(1, 2))
    heads = table((3, 2 * old - 1, 2 * old - 1))
    simple = timm.resize_rel_pos_bias_table_simple(heads, (new, new), (3, 2 * new - 1, 2 * new - 1))
    assert_close(resize_table(heads, sizes=sizes, layout=apart, method="bicubic"), simple)


def test_distances_as_timm_does_for_levit() -> None:
    vision_transformer()
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_levit

    axes = tuple(Axis(name, 7, relative=True, signed=False) for name in ("height", "width"))
    heads = table((4, 49))
    new = resize_table(heads, sizes={"height": 12, "width": 12}, layout=TableLayout(axes=axes, dims=(1,)))
    assert_close(new, resize_rel_pos_bias_table_levit(heads.T, (144, 4)).T)


def test_frames_as_timesformer_does() -> None:
    layout, frames = TableLayout(axes=(Axis("time", 8),)), table((1, 8, 4))
    for count in (8, 12, 5, 32):
        own = torch.nn.functional.interpolate(frames.transpose(1, 2), size=count, mode="nearest").transpose(1, 2)
        assert torch.equal(resize_table(frames, sizes={"time": count}, layout=layout, method="nearest"), own)


# --- what is refused


def test_sizes_and_methods_that_do_not_fit() -> None:
    layout = TableLayout(axes=WINDOW)
    rows = table((63, 2))
    for arguments, message in (
        ({"length": 80}, "9 differences of height x 7 differences of width; got length=80"),
        ({"sizes": {"time": 3}}, "expected sizes of the axes height, width; got time"),
        ({"sizes": {"height": 0}}, "height: expected a whole number of at least 1"),
        ({"sizes": {"height": 6}, "method": "tile"}, "differences on a grid is called 'tile'"),
        ({"sizes": {"height": 6}, "grid": (3, 3)}, "exactly one of"),
        ({}, "exactly one of"),
    ):
        with pytest.raises(ArgumentError, match=message):
            resize_table(rows, layout=layout, **arguments)
    with pytest.raises(ArgumentError, match="size: expected a whole number"):
        Axis("height", 0)
    with pytest.raises(ArgumentError, match="one dimension for each axis"):
        TableLayout(grid=(3, 4), prefix=1, dims=(1, 2))
    with pytest.raises(ArgumentError, match="is not the axes"):
        TableLayout(grid=(3, 4), axes=VIDEO)
    assert kernels_of(()).default == "tile"


def test_a_grid_and_its_axes_are_one_layout() -> None:
    grid = TableLayout(prefix=1, grid=(3, 4))
    assert grid == TableLayout(prefix=1, axes=(Axis("height", 3), Axis("width", 4)))
    assert grid.resized({"width": 9}) == grid.on_grid(3, 9)
    assert str(grid) == "TableLayout(prefix=1, grid=(3, 4))"
    assert TableLayout(axes=WINDOW).grid is None


def test_a_table_with_its_axes_exchanged_is_refused() -> None:
    layout = TableLayout(grid=(4, 6), dims=(1, 2))
    with pytest.raises(ArgumentError, match=r"sizes \(4, 6\); got \(6, 4\)"):
        resize_table(torch.randn(1, 6, 4, 8), grid=(8, 12), layout=layout)


def test_lists_and_whole_numbers_of_other_libraries_give_equal_layouts() -> None:
    axes = [Axis("height", np.int64(3), relative=True), Axis("width", 4, relative=True)]
    layout = TableLayout(axes=axes, dims=[1])
    same = TableLayout(axes=(Axis("height", 3, relative=True), Axis("width", 4, relative=True)), dims=(1,))
    assert {layout: str(layout)} == {same: str(same)}
    table = torch.randn(2, 35)
    new = resize_table(table, sizes={"height": np.int64(5)}, layout=layout)
    assert torch.equal(new, resize_table(table, sizes={"height": 5}, layout=same))


FRAMES = (Axis("time", 3),)


@together(
    "call",
    [
        lambda: Axis(3, 3),
        lambda: Axis("time", 3, signed=False),
        lambda: TableLayout(axes=Axis("time", 3)),
        lambda: TableLayout(axes=("time",)),
        lambda: TableLayout(axes=(Axis("time", 3), Axis("time", 4))),
        lambda: TableLayout(axes=(Axis("height", 3), Axis("width", 4)), dims=(1, 1)),
        lambda: resize_table(torch.randn(3, 2), sizes={"time": 4}, layout=TableLayout(axes=FRAMES, dims=(2,))),
        lambda: resize_table(torch.ones(2, 3).long(), sizes={"time": 4}, layout=TableLayout(axes=FRAMES, dims=(1,))),
        lambda: resize_table(torch.randn(3, 2), sizes={"time": True}, layout=TableLayout(axes=FRAMES)),
        lambda: resize_table(torch.randn(3, 2), length=4, method=["tile"]),
        lambda: resize_table(torch.randn(3, 2), length=4, method=lambda rows, length: None),
    ],
)
def test_a_layout_or_a_size_that_means_nothing_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match="got"):
        call()


def test_leading_rows_of_one_number_are_counted_at_any_stride() -> None:
    biases = torch.randn(1, 16)  # one head
    assert leading_rows_kept(biases.T, torch.cat([biases.T[:5], torch.randn(4, 1)])) == 5
