"""Tables along the axes of images, windows and videos in a file without a config: their names say which axes, their
shapes and the tensors beside them say how many cells."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.find import is_index
from posembed.checkpoints.layouts import A_GUESS, GUESSED_PREFIXES, found_tensor, projection_beside
from posembed.checkpoints.native.sizes import AXES, field_of, kind_of, sides
from posembed.checkpoints.patterns import index_of
from posembed.checkpoints.position_tables import Cells, ConfigField, FoundTable, PositionTable, Size, Tensors
from posembed.modelfiles.safetensors import values_of
from posembed.tables.layout import IMAGE_AXES, Axis, TableLayout
from posembed.tables.modules import is_table_name, parent

DISTANCES = re.compile(r"(^|\.)attention_biases$")
IN_CODE = (
    "its columns are distances of two cells, as in LeViT and TinyViT, and which cells is in the model's code; load it "
    "with timm, write a folder with timm.models.save_for_hf(model, FOLDER), and resize that"
)
INTERPOLATED = (
    "SAM 2 interpolates pos_embed to each image and repeats pos_embed_window, so it needs no resize; give its config "
    "the new image_size"
)
NO_IMAGE = "its differences are neither those of the grid of another table of the file nor of a smaller window"


@dataclass(frozen=True)
class Kind:
    """Tables with such names. relative: whether their rows are differences. tails: the numbers of rows that may follow
    these: in BEiT, three are those of the class token."""

    name: re.Pattern[str]
    axes: tuple[str, ...]
    relative: bool = True
    tails: tuple[int, ...] = (0,)


KINDS = (
    Kind(re.compile(r"(^|\.)rel_pos_h$"), ("height",)),
    Kind(re.compile(r"(^|\.)rel_pos_w$"), ("width",)),
    Kind(re.compile(r"(^|\.)relative_position_bias_table$"), IMAGE_AXES, tails=(0, 3)),
    Kind(re.compile(r"(^|\.)((time|temporal)_(pos_)?embed(ding)?|pos_embed_temporal)$"), ("time",), relative=False),
    Kind(re.compile(r"(^|\.)(query|queries|refpoint)_(embed|feat)(der|ures)?\.weight$"), ("query",), relative=False),
)


def tables_by_shape(tensors: Tensors, old_grid: tuple[int, ...] | None) -> Iterator[FoundTable]:
    """Yields the tables of ``KINDS``, and those with a dimension for each side of an image. old_grid: its sides, if the
    user gives them; otherwise they are equal."""
    for key, tensor in tensors.items():
        table, shape = found_tensor(tensors, key), tuple(tensor.shape)
        if key.removesuffix("_window").endswith("pos_embed") and f"{key.removesuffix('_window')}_window" in tensors:
            yield replace(table, fixed=True).doubted(INTERPOLATED)
        elif is_table_name(key) and len(shape) == 4 and shape[0] == 1:
            fits = [at for at in (1, 2) if shape[at] > 1 and shape[at : at + 2] == (old_grid or (shape[at],) * 2)]
            axes = tuple(map(Axis, IMAGE_AXES, shape[fits[0] :])) if len(fits) == 1 else ()
            read = table.read_by(TableLayout(axes=axes, dims=(fits[0], fits[0] + 1)), doubt=A_GUESS) if axes else None
            yield read or table.doubted("the sides of its grid are not known; pass --old-grid (old_grid=...)")
        if DISTANCES.search(key) and len(shape) == 2:
            yield table_of_distances(table, tensors)
        for kind in KINDS:
            if kind.name.search(key) and shape[:-2] == (1,) * (kind.axes == ("time",)) and table.rows > 1:
                yield table_of(kind, table, tensors)


def index_beside(table: FoundTable, tensors: Tensors) -> Tensor | None:
    beside = (key for key in tensors if is_index(key) and parent(key) == parent(table.key))
    return next((values_of(tensors[key]) for key in beside), None)


def table_of_distances(table: FoundTable, tensors: Tensors) -> FoundTable:
    """Returns a table of the distances of the cells of a square, if the index beside it confirms them."""
    index, side = index_beside(table, tensors), math.isqrt(table.shape[-1])
    axes = tuple(Axis(name, side, relative=True, signed=False) for name in IMAGE_AXES)
    step = 1 if index is None or len(index) == side * side else 2
    fits = index is not None and torch.equal(index, index_of(axes, step=step).to(index.dtype))
    return table.read_by(TableLayout(axes=axes, dims=(1,)), doubt=IN_CODE) if fits else table.doubted(IN_CODE)


def in_stages(
    table: PositionTable, tables: Sequence[PositionTable], sizes: Mapping[Any, Any], tensors: Tensors
) -> FoundTable:
    """Returns a table of distances with the size of the first stage: each further one has half as many cells on a side.
    It has a doubt unless indices between the stages show this, because windows have the same names."""
    of_side: dict[int, set[int]] = {}  # the sides of the cells that attend
    for each in (each for each in tables if not each.layout.axes[0].signed):
        index = index_beside(each, tensors)
        of_side.setdefault(int(each.layout.axes[0].size), set()).add(0 if index is None else math.isqrt(len(index)))
    first, *others = sorted(of_side, reverse=True)
    if not others or any(small not in of_side[large] for large, small in pairwise((first, *others))):
        return table.doubted(IN_CODE)
    image = next(
        (size for place, value in sizes.items() if kind_of(place) == "image_size" and (size := sides(value))), None
    )
    field = field_of("image_size", image, sizes) if image else field_of("grid_size", (first,), sizes)
    stride = (image[0] // first if image else 1) * 2 ** [first, *others].index(int(table.layout.axes[0].size))
    return replace(
        table, found_by="settings", doubt="", field=field, cells=tuple(Cells(field, at, 1, stride) for at in (0, 1))
    )


def table_of(kind: Kind, table: FoundTable, tensors: Tensors) -> FoundTable:
    """Returns a table with its axes, which the index beside it confirms, if there is one; with a doubt if none fit."""
    index = index_beside(table, tensors)
    for tail in kind.tails:
        rows = table.rows - tail
        side = (math.isqrt(max(rows, 0)) + 1) // 2 if len(kind.axes) > 1 else (rows + 1) // 2 if kind.relative else rows
        sizes = [(max(side, 1),) * len(kind.axes)]  # equal, unless the index has other sides
        if index is not None:
            cells = len(index) - bool(tail)
            sizes = [(each, cells // each) for each in range(1, cells + 1) if cells % each == 0]
        for each in sizes:
            axes = tuple(Axis(*one, relative=kind.relative) for one in zip(kind.axes, each, strict=True))
            fits = index is None or torch.equal(index, index_of(axes, behind_token=tail > 0).to(index.dtype))
            if math.prod(axis.rows for axis in axes) == rows and fits:
                return table.read_by(TableLayout(axes=axes, tail=tail), doubt=A_GUESS)
    return table.doubted(f"its {table.rows} rows are not the differences of the cells of a square, or of its index")


def on_stated_image(table: FoundTable, sizes: Mapping[Any, Any], tensors: Tensors) -> FoundTable:
    """Returns a table that was guessed by its number of rows on the grid of an image that a setting states, where the
    guess fits none: 144 rows may be 12 x 12 or 9 x 16 patches."""
    grids = stated_grids(table, sizes, tensors)
    guessed = table.layout.grid if isinstance(table, PositionTable) else None
    if len(table.shape) != 3 or table.shape[0] != 1 or guessed in grids or not is_table_name(table.key):
        return table
    fits = ((table.rows - math.prod(grid), grid) for grid in grids)
    layouts = [TableLayout(prefix=others, grid=grid) for others, grid in fits if others in GUESSED_PREFIXES]
    return table.read_by(layouts[0], doubt=A_GUESS) if layouts else table


def stated_grids(table: FoundTable, sizes: Mapping[Any, Any], tensors: Tensors) -> dict[Size, Size]:
    """Returns the grids of patches of the images that the settings state, each with the size of the image. A side that
    is no multiple of the patch has pixels that no patch sees."""
    projection = projection_beside(table.key, tensors)
    stated = [sides(value) for place, value in sizes.items() if kind_of(place) == "image_size"]
    patch = tuple(tensors[projection].shape[-2:]) if projection else (1, 1)
    return {(image[0] // patch[0], image[1] // patch[1]): image for image in stated if image and projection}


def with_cells(
    table: PositionTable, tables: Sequence[PositionTable], sizes: Mapping[Any, Any], tensors: Tensors
) -> FoundTable:
    """Returns a table along axes with the settings that give its sizes, if its patches or its window are known.

    tables: those of the file. Differences belong to a window, unless they span the grid of another table (SAM), or a
    class token takes part in them (BEiT). sizes: the settings, by place.
    """
    axes, projection = table.layout.axes, projection_beside(table.key, tensors)
    if not axes[0].signed:
        return in_stages(table, tables, sizes, tensors)
    patch = (1, 1, *tensors[projection].shape[2:])[-3:] if projection else None
    grid = {axis.name: int(axis.size) for axis in axes}
    if axes[0].name == "query":  # in LW-DETR and RF-DETR, training has several groups of them
        counts = [int(value) for place, value in sizes.items() if kind_of(place) == "num_queries"]
        count = next((each for each in counts if table.rows % each == 0), table.rows)
        query, group = field_of("num_queries", (count,), sizes), ConfigField(("group_detr",), table.rows // count)
        layout = TableLayout(axes=(Axis("group", table.rows // count), Axis("query", count)))
        found = replace(table, found_by="settings", doubt="") if count in counts else table
        return replace(found, layout=layout, field=query, cells=(Cells(group), Cells(query)))
    strides: dict[str, Any] = dict(zip(AXES, patch or (1, 1, 1), strict=True))
    window: tuple[int, ...] = ()
    if axes[0].relative and not table.layout.tail:
        alike = [each.layout.axes for each in tables if [axis.name for axis in each.layout.axes] == list(grid)]
        largest = {axis.name: max(int(each[at].size) for each in alike) for at, axis in enumerate(axes)}
        grids = [dict(zip(IMAGE_AXES, each.layout.grid, strict=True)) for each in tables if each.layout.grid]
        spanned = [each for each in grids if len(axes) == 1 and largest.items() <= each.items()]
        if len(axes) == 1 and not spanned:
            return table.doubted(NO_IMAGE)
        if len(axes) > 1 or grid != largest:  # the last stages of a small image have smaller windows
            window = tuple((largest if len(axes) > 1 else grid).values())
            strides = {name: Fraction(one, grid[name]) for name, one in zip(grid, window, strict=True)}
        else:
            grid = spanned[0]
    if patch is None and not window and set(grid) != {"time"}:
        return table
    image = tuple(grid[name] * strides[name] for name in IMAGE_AXES if name in grid)
    if image and not window and (stated := stated_grids(table, sizes, tensors)):
        fits = next((size for cells, size in stated.items() if cells == (grid["height"], grid["width"])), None)
        if fits is None:
            return table  # the patches overlap, or the images of the settings are not those that are cut into patches
        image = fits
    elif image and projection and tensors[projection].shape[1] == 1 and grid["height"] != grid["width"]:
        return table  # a spectrogram, whose patches may overlap (AST)
    fields = {}
    if image:
        field = field_of("window_size", window, sizes) if window else field_of("image_size", image, sizes)
        fields = dict.fromkeys(IMAGE_AXES, field)
    if "time" in grid:
        fields["time"] = field_of("num_frames", (grid["time"] * strides["time"],), sizes)
    cells = (Cells(fields[axis.name], int(axis.name == "width"), *(strides[axis.name],) * 2) for axis in axes)
    return replace(table, found_by="settings", doubt="", field=fields[axes[-1].name], cells=tuple(cells))
