"""Finds the tables in a file that a project's own script saved.

Nothing in such a file names the model. Tables along the axes of images, windows and videos are recognised by their
names, their shapes and the tensors beside them, and other tables by their names. The settings beside the weights
(``model_args["block_size"]``, ``args.max_positions``) confirm the layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.find import checked, find_tables, is_index
from posembed.checkpoints.layouts import (
    A_GUESS,
    GUESSED_PREFIXES,
    LINE_OR_GRID,
    found_tensor,
    guessed_grid,
    has_rows,
    projection_beside,
)
from posembed.checkpoints.native.sizes import (
    AFTER_PADDING,
    AXES,
    LINES,
    field_of,
    kind_of,
    name_of,
    nearness,
    pads,
    plain,
    sizes_in,
)
from posembed.checkpoints.native.stated import (
    AS_FOUND,
    Rows,
    has_sides,
    is_of_images,
    is_of_texts,
    on_given_grid,
    stated_grids,
    with_given_rows,
)
from posembed.checkpoints.patterns import index_of
from posembed.checkpoints.position_tables import Cells, ConfigField, Found, FoundTable, PositionTable, Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, WeightFile
from posembed.modelfiles.safetensors import dtype_name, values_of
from posembed.modelfiles.training_files import Place
from posembed.tables.layout import IMAGE_AXES, Axis, TableLayout
from posembed.tables.modules import MOST_LISTED, is_table_name, may_be_table_name, own_name, parent

TWO_READINGS = (
    "its {rows} rows may be as many positions, or fewer after {after} reserved rows, as in RoBERTa; pass --reserved 0 "
    "or --reserved {after} (reserved=...)"
)
IN_CODE = (
    "its columns are distances of two cells, as in LeViT and TinyViT, and which cells is in the model's code; load it "
    "with timm, write a folder with timm.models.save_for_hf(model, FOLDER), and resize that"
)
INTERPOLATED = (
    "SAM 2 interpolates pos_embed to each image and repeats pos_embed_window, so it needs no resize; give its config "
    "the new image_size"
)
MAY_BE_NAMED = "it may be a table by its name and shape; if it is, a resize takes it with --table (table=...)"
SPEAKS_OF_POSITIONS = re.compile(
    r"(?i)(?!.*(linear|lin|fc|proj|ffn|to|attn)_)(.*_)?(pos|pe|positions?|time_?steps?|encodings?)(_?emb\w*|_?table)?"
)
"""Matches a tensor's own name, such as ``positions``, ``embed_timestep`` or ``pos_table``."""
NO_SIDES = "its shape, {}, does not show the sides of its grid; pass two numbers in it as --old-grid (old_grid=...)"
NO_IMAGE = "its differences are neither those of the grid of another table of the file nor of a smaller window"


def tables_in(file: WeightFile, tensors: Tensors, rows: Rows, on_grid: bool | None = None, named: str = "") -> Found:
    """Returns the tables of a file, with the layouts that the user states or the settings confirm. on_grid: whether the
    user asks for the size of a grid; None for any table. named: the table that the user names."""
    found = find_tables(None, tensors)
    sizes = dict(sorted(sizes_in(file).items(), key=lambda size: -nearness(size[0], named)))
    texts: set[str] = set()  # alone in a file, the tokens beside a table may be those of an image
    if any(is_of_images(table, tensors, by_shape=False) for table in found.tables):
        texts = {table.key for table in found.tables if is_of_texts(table, tensors)} - ({named} if on_grid else set())
    by_key = {
        table.key: in_line_or_grid(table, sizes, on_grid, tensors, of_texts=table.key in texts)
        for table in found.tables
    }
    by_key |= {table.key: table for table in tables_by_shape(tensors, rows.old_grid)}
    if not by_key:
        named_so = (key for key in tensors if SPEAKS_OF_POSITIONS.fullmatch(own_name(key)))
        may_be = [found_tensor(tensors, key) for key in named_so if not why_no_table(key, tensors)]
        square = {each.key for each in may_be if each.rows == each.width and each.key.endswith(".weight")}  # a layer's
        by_key = {each.key: each.doubted(MAY_BE_NAMED) for each in may_be if each.key not in square}
    by_key |= {key: on_stated_image(by_key[key], sizes, tensors) for key in by_key.keys() - texts}
    given: dict[str, FoundTable] = {}
    if rows.old_grid is not None:
        given |= on_given_grid(by_key, rows, named, sizes, tensors)
    if rows.reserved is not None or rows.tail is not None:
        given |= with_given_rows(by_key, rows, named, on_grid, sizes, tensors)
    by_key = {key: checked(table, found, "", tensors) for key, table in {**by_key, **given}.items()}
    if named in tensors and named not in by_key:
        why = why_no_table(named, tensors) or "it is not known how its rows are read"
        by_key[named] = found_tensor(tensors, named).doubted(why)
    elif named and named not in tensors:
        near = [key for key in tensors if key.startswith(f"{named}.") or f".{key}".endswith(f".{named}")]
        near = near or [key for key in tensors if f".{named}".endswith(f".{key}")]
        near = [key for key in near if not why_no_table(key, tensors)]
        if near:
            raise CheckpointError(f"--table {named}: no tensor has this key; pass {' or '.join(near[:MOST_LISTED])}")
    tables = [by_key[key] for key in tensors if key in by_key]
    by_sides = {each.key for each in tables if has_sides(each, rows.old_grid) and not (rows.reserved or rows.tail)}
    along = [table for table in tables if isinstance(table, PositionTable) and table.layout.axes]
    return replace(
        found,
        stated=None if rows == AS_FOUND else {*given, *by_sides},
        tables=tuple(
            with_cells(table, along, sizes, tensors)
            if isinstance(table, PositionTable) and table.layout.axes
            else as_set(table, sizes, pads=pads(file.tree), given=table.key in given and rows.reserved is not None)
            for table in tables
        ),
    )


def why_no_table(key: str, tensors: Tensors) -> str:
    """Returns why a tensor is no table, even if the user says so; "" if it is one then."""
    bias = f"{key.removesuffix('.weight')}.bias"
    if bias in tensors:
        return f"{bias} is beside it, so it is the weight of a layer"
    if not may_be_table_name(key):
        return "by its name it belongs to tokens, to a layer or to differences of positions"
    if not has_rows(tensors[key]):
        held = f"it is {dtype_name(tensors[key])} of shape {tuple(tensors[key].shape)}"
        return f"{held}; a table is a floating tensor (N, D), (1, N, D) or (N, 1, D), with N and D above 1"
    return ""


def tables_of(checkpoint: Checkpoint, *, rebuild: bool = True) -> Found:
    """Returns a checkpoint's tables, found by its config or, in one file without a config, by names and settings."""
    if checkpoint.folder is None:
        return tables_in(checkpoint.weights[0], checkpoint.tensors, AS_FOUND)
    return find_tables(checkpoint.config, checkpoint.tensors, rebuild=rebuild)


def as_set(table: FoundTable, sizes: Mapping[Place, Any], *, pads: bool, given: bool) -> FoundTable:
    """Returns a table of positions in a line with the setting that gives its length, if any. pads: whether a setting
    says that token 1 is padding, as in RoBERTa, whose configs count all rows. given: whether the layout is stated."""
    if not isinstance(table, PositionTable):
        return table
    whole = {place: plain(value) for place, value in sizes.items() if kind_of(place) in LINES}
    lengths = {value: place for place, value in reversed(whole.items()) if type(value) is int}
    rows, starts = table.rows - table.layout.tail, (table.layout.front,) if given else (0, AFTER_PADDING)
    says = {reserved: rows - reserved for reserved in starts if rows - reserved in lengths}
    if not given and (len(says) > 1 or (0 in says and pads)):
        return replace(table, found_by="settings", doubt=TWO_READINGS.format(rows=table.rows, after=AFTER_PADDING))
    for reserved, length in says.items():
        layout = table.layout if given or not reserved else replace(TableLayout.roberta(), tail=table.layout.tail)
        field = ConfigField(tuple(map(str, lengths[length])), length)
        return replace(table, layout=layout, field=field, found_by="settings", doubt="")
    return table


# --- tables along axes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Tables that ``name`` matches. relative: whether their rows are differences. tails: how many rows may follow; in
    BEiT, 3 for the class token."""

    name: re.Pattern[str]
    axes: tuple[str, ...]
    relative: bool = True
    tails: tuple[int, ...] = (0,)


DISTANCES = re.compile(r"(^|\.)attention_biases$")  # of LeViT and its like
KINDS = (
    Kind(re.compile(r"(^|\.)rel_pos_h$"), ("height",)),
    Kind(re.compile(r"(^|\.)rel_pos_w$"), ("width",)),
    Kind(re.compile(r"(^|\.)relative_position_bias_table$"), IMAGE_AXES, tails=(0, 3)),
    Kind(re.compile(r"(^|\.)(decoder_)?((time|temporal)_(pos_)?embed(ding)?|pos_embed_temporal)$"), ("time",), False),
    Kind(re.compile(r"(^|\.)(query|queries|refpoint)_(embed|feat)(der|ures)?\.weight$"), ("query",), relative=False),
)


def tables_by_shape(tensors: Tensors, old_grid: tuple[int, ...] | None) -> Iterator[FoundTable]:
    """Yields the tables that match ``KINDS``, and tables with one dimension for each side of an image. old_grid: the
    sides, in patches, if the user states them; otherwise the sides must be equal."""
    for key, tensor in tensors.items():
        table, shape = found_tensor(tensors, key), tuple(tensor.shape)
        if key.removesuffix("_window").endswith("pos_embed") and f"{key.removesuffix('_window')}_window" in tensors:
            yield replace(table, fixed=True).doubted(INTERPOLATED)
        elif is_table_name(key) and len(shape) == 4 and shape[0] == 1 and min(shape[1:]) > 1:
            fits = [at for at in (1, 2) if shape[at] > 1 and shape[at : at + 2] == (old_grid or (shape[at],) * 2)]
            axes = tuple(map(Axis, IMAGE_AXES, shape[fits[0] :])) if len(fits) == 1 else ()
            read = table.read_by(TableLayout(axes=axes, dims=(fits[0], fits[0] + 1)), doubt=A_GUESS) if axes else None
            yield read or table.doubted(NO_SIDES.format(" x ".join(map(str, shape))))
        elif DISTANCES.search(key) and len(shape) == 2:
            yield table.doubted(IN_CODE)
        for kind in KINDS:
            if kind.name.search(key) and shape[:-2] == (1,) * (kind.axes == ("time",)) and table.rows > 1:
                yield table_of(kind, table, tensors)


def index_beside(table: FoundTable, tensors: Tensors) -> Tensor | None:
    beside = (key for key in tensors if is_index(key) and parent(key) == parent(table.key))
    return next((values_of(tensors[key]) for key in beside), None)


def table_of(kind: Kind, table: FoundTable, tensors: Tensors) -> FoundTable:
    """Returns a table with axes that fit its rows and its stored index, if any; otherwise marked as not understood."""
    index = index_beside(table, tensors)
    for tail in kind.tails:
        rows = table.rows - tail
        side = (math.isqrt(max(rows, 0)) + 1) // 2 if len(kind.axes) > 1 else (rows + 1) // 2 if kind.relative else rows
        sizes = [(max(side, 1),) * len(kind.axes)]  # equal, unless the index has other sides
        if index is not None:
            cells = index.shape[-1] - bool(tail)
            sizes = [(each, cells // each) for each in range(1, cells + 1) if cells % each == 0]
        for each in sizes:
            pairs = zip(kind.axes, each, strict=True)
            axes = tuple(Axis(*one, relative=kind.relative) for one in pairs)
            fits = index is None or torch.equal(index, index_of(axes, behind_token=tail > 0).to(index.dtype))
            if math.prod(axis.rows for axis in axes) == rows and fits:
                return table.read_by(TableLayout(axes=axes, tail=tail), doubt=A_GUESS)
    return table.doubted(f"its {table.rows} rows are not the differences of the cells of a square, or of its index")


def in_line_or_grid(
    table: FoundTable, sizes: Mapping[Any, Any], on_grid: bool | None, tensors: Tensors, *, of_texts: bool
) -> FoundTable:
    """Returns a guessed table (1, N, D) on a grid or in a line as the user asks, if the settings do not contradict it
    and, for a line, say so; otherwise as the settings say; one of texts in a line. A table (N, D) is a grid, if the
    user asks for one and a convolution to patches (a tower of CLIP alone) or a class token is beside it."""
    is_grid = isinstance(table, PositionTable) and bool(table.layout.axes)
    if on_grid and len(table.shape) == 2 and table.doubt == A_GUESS and not is_grid:
        grid = guessed_grid(table)
        return grid if isinstance(grid, PositionTable) and is_of_images(table, tensors, by_shape=False) else table
    if len(table.shape) != 3 or table.shape[0] > 1 or table.found_by != "name" or table.fixed:
        return table
    line = table.read_by(TableLayout(), doubt=A_GUESS)
    stated = table.rows in (plain(value) for place, value in sizes.items() if kind_of(place) in LINES)
    if is_grid or table.doubt not in (A_GUESS, LINE_OR_GRID):  # in a model of images
        return line if stated and on_grid is False else table
    if of_texts:
        return line
    if on_grid or (not stated and "image_size" in map(kind_of, sizes)):
        return guessed_grid(table)
    return line if stated or (on_grid is False and table.doubt == LINE_OR_GRID) else table


def frames_per_row(rows: int, depth: int | None, sizes: Mapping[Any, Any]) -> int:
    """Returns how many frames a row along time stands for: the depth of the convolution, unless it is odd, as in MViT
    and SlowFast, where it overlaps the next one, or unknown. Then a setting decides; 1 if none does."""
    if depth is not None and (depth % 2 == 0 or depth == 1):
        return depth
    found = [(name_of(place), plain(value)) for place, value in sizes.items() if kind_of(place) == "num_frames"]
    fits = [(name, value // rows) for name, value in found if type(value) is int and value > 0 and value % rows == 0]
    strides = [stride for name, stride in fits if name == "num_frames"]
    if not strides:  # any other setting, such as max_frames, may be the data's
        strides = list({stride for _, stride in fits if stride <= (depth or 1)})
        strides = strides if len(strides) == 1 else []
    return depth if depth in strides else min(strides, default=1)


def on_stated_image(table: FoundTable, sizes: Mapping[Any, Any], tensors: Tensors) -> FoundTable:
    """Returns a table with the grid of an image size in the settings, if the grid guessed from its rows fits no such
    image: 144 rows may be 12 x 12 or 9 x 16 patches. Other tables are returned unchanged."""
    grids = stated_grids(table, sizes, tensors)
    guessed = table.layout.grid if isinstance(table, PositionTable) else None
    if len(table.shape) != 3 or table.shape[0] != 1 or guessed in grids or not is_table_name(table.key):
        return table
    fits = ((table.rows - math.prod(grid), grid) for grid in grids)
    layouts = [TableLayout(prefix=others, grid=grid) for others, grid in fits if others in GUESSED_PREFIXES]
    return table.read_by(layouts[0], doubt=A_GUESS) if layouts else table


def with_cells(
    table: PositionTable, tables: Sequence[PositionTable], sizes: Mapping[Any, Any], tensors: Tensors
) -> FoundTable:
    """Returns a table along axes with the settings that give its sizes, if its patches or its window are known.

    tables: all tables along axes in the file. Differences belong to a window, unless they span the grid of another
    table (SAM) or include a class token (BEiT). sizes: the settings, by place.
    """
    axes, projection = table.layout.axes, projection_beside(table.key, tensors)
    patch = (1, 1, *tensors[projection].shape[2:])[-3:] if projection else None
    grid = {axis.name: int(axis.size) for axis in axes}
    if axes[0].name == "query":  # in LW-DETR and RF-DETR, training has several groups of them
        counts = [int(value) for place, value in sizes.items() if kind_of(place) == "num_queries"]
        count = next((each for each in counts if table.rows % each == 0), table.rows)
        query = field_of("num_queries", (count,), sizes)
        group = ConfigField(("group_detr",), table.rows // count, stated=table.rows != count)
        layout = TableLayout(axes=(Axis("group", table.rows // count), Axis("query", count)))
        found = replace(table, found_by="settings", doubt="") if count in counts else table
        return replace(found, layout=layout, field=query, cells=(Cells(group), Cells(query)))
    strides: dict[str, Any] = dict(zip(AXES, patch or (1, 1, 1), strict=True))
    strides["time"] = frames_per_row(grid.get("time", 1), strides["time"], sizes)
    window: tuple[int, ...] = ()
    if axes[0].relative and not table.layout.tail:
        differences = [each.layout.axes for each in tables if each.layout.axes[0].relative]
        alike = [each for each in differences if [axis.name for axis in each] == list(grid)]
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
    if patch is None and "time" in grid and len(grid) == len(AXES):  # stated by the user; patches of unknown size
        frames = frames_per_row(grid["time"], None, sizes)
        depth = field_of("num_frames", (grid["time"] * frames,), sizes)
        of_image = field_of("grid_size", (grid["height"], grid["width"]), sizes)
        return replace(table, cells=(Cells(depth, 0, frames, frames), Cells(of_image), Cells(of_image, 1)))
    if patch is None and not window and set(grid) != {"time"}:
        return table
    image = tuple(grid[name] * strides[name] for name in IMAGE_AXES if name in grid)
    if image and not window and (stated := stated_grids(table, sizes, tensors)):
        fits = next((size for cells, size in stated.items() if cells == (grid["height"], grid["width"])), None)
        if fits is None:
            return table  # the patches overlap, or the images of the settings are not those that are cut into patches
        image = fits
    elif projection and tensors[projection].shape[1] == 1 and len({*grid.values()}) == len(grid) == 2 and not window:
        return table  # a spectrogram, whose patches may overlap (AST)
    fields = {}
    if image:
        field = field_of("window_size", window, sizes) if window else field_of("image_size", image, sizes)
        fields = dict.fromkeys(IMAGE_AXES, field)
    if "time" in grid:
        fields["time"] = field_of("num_frames", (grid["time"] * strides["time"],), sizes)
    cells = (Cells(fields[axis.name], int(axis.name == "width"), *(strides[axis.name],) * 2) for axis in axes)
    return replace(table, found_by="settings", doubt="", field=fields[axes[-1].name], cells=tuple(cells))
