"""Explains a table's shapes by axes: the number of cells along each axis, and the number of other rows.

The input is a tensor's shape before and after each config field was doubled. Each field sizes one or two axes
(``ROLES``), by n = (value - kernel) // stride + 1. An axis has n rows, or 2 n - 1 if it is relative. The axes of all
fields explain a shape if

    rows = (product of the rows along each axis) + other rows

holds before and after each doubling, with the same number of other rows. If there are several explanations, the one
with the fewest other rows counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TypeAlias

from posembed.checkpoints.position_tables import Cells, Config, ConfigField, Size, pair, section
from posembed.checkpoints.responses import AREA, doubled
from posembed.checkpoints.sources.base import Shape
from posembed.tables.layout import IMAGE_AXES, SIDES, Axis, TableLayout

ORDER = ("frequency", "time", *IMAGE_AXES, "group", "query")  # of axes by their rows: the last one changes fastest
OF_WIDTH = re.compile(r"(_w|_x|width|col(umn)?s?)(_|\b)")
OF_DIFFERENCES = re.compile(r"rel|bias|dist|attn\.pos_emb$")
OF_BIAS = re.compile(r"bias(es)?(_|\b)")
SIDE = re.compile(r"left|right")
STRIDES = tuple(2**power for power in range(8))  # of stages that halve an image, or of whole pixels
IN_CELLS = re.compile(r"window|pos_?emb")  # fields that count cells and not pixels
TUBELET = ("tubelet_size", "temporal_patch_size")

Response: TypeAlias = tuple[ConfigField, Shape, Shape]  # a field, and a shape before and after it was doubled


@dataclass(frozen=True)
class Role:
    """What a config field measures. field: matches the name of the field. axes: the axes that the field sizes.

    in_patches: whether the field has this role only in a config with a field for patches, such as patch_size. table:
    matches the names of the tables for which the field has this role.
    """

    field: re.Pattern[str]
    axes: tuple[str, ...]
    in_patches: bool = False
    table: re.Pattern[str] = re.compile("")


ROLES = (
    Role(re.compile(r"^(pretrain_|max_)?(image_size|img_size|input_size)$"), IMAGE_AXES),
    Role(re.compile(r"^posemb_grid_size$"), IMAGE_AXES, in_patches=True),
    Role(re.compile(r"^pos_emb_height$"), ("height",), in_patches=True),
    Role(re.compile(r"^pos_emb_width$"), ("width",), in_patches=True),
    Role(AREA, IMAGE_AXES, in_patches=True),
    Role(re.compile(r"^window_sizes?$|background_size$"), IMAGE_AXES),
    Role(re.compile(r"^num_frames$|^num_image_with_embedding$"), ("time",)),
    Role(re.compile(r"^(max|context)_length$"), ("time",), in_patches=True),
    Role(re.compile(r"^num_mel_bins$"), ("frequency",)),
    Role(re.compile(r"^max_2d_position_embeddings$"), ("coordinate",)),
    Role(
        re.compile(r"^(position_embedding_size|mm_posemb_size|seq_len|max_num_patches)$"), ("number",), in_patches=True
    ),
    Role(re.compile(r"^max_ep_len$|^max_grid_(row|col)_position_embeddings$"), ("number",)),
    Role(re.compile(r"^max_position_embeddings$"), ("number",), table=re.compile(r"\b(row|column)_embeddings\b")),
    Role(re.compile(r"^num_queries$"), ("query",)),
    Role(re.compile(r"^group_detr$"), ("group",)),
    Role(re.compile(r"^rel_extent$|^sliding_window_size$"), ("distance",)),
)


@dataclass(frozen=True)
class Explanation:
    """A table's layout without its other rows (such as a class token's), the fields that size its axes, and the number
    of other rows. Whether the other rows come first or last is not known yet."""

    layout: TableLayout
    cells: tuple[Cells, ...]
    others: int = 0


def limited(responses: Sequence[Response]) -> Explanation | None:
    """Returns two axes (backward, forward) if the shapes are those of relative positions with a limit, otherwise None.
    Either one field m gives m rows backward, and m or m + 1 forward; or each side has a field, and difference 0 a row.
    """
    if any(len(old) != len(new) or old[-1] != new[-1] or max(old[:-2], default=1) > 1 for _, old, new in responses):
        return None
    fields = [field for field, *_ in responses]
    values = [field.value for field in fields if isinstance(field.value, int)]
    gained = [new[-2] - old[-2] for _, old, new in responses if len(old) > 1]
    names = [SIDE.findall(field.path[-1]) for field in fields]
    others = responses[0][1][-2] - sum(gained) if gained else -1
    if len(values) == 1 and gained == [2 * values[0]] and others in (0, 1):
        cells = Cells(fields[0]), Cells(fields[0], kernel=1 - others)
    elif names == [["left"], ["right"]] and gained == values and others == 1:
        cells = Cells(fields[0]), Cells(fields[1], kernel=0)
    else:
        return None
    sides = zip(SIDES, cells, strict=True)
    axes = tuple(Axis(name, each.count(each.field.value), relative=True, signed=False) for name, each in sides)
    return Explanation(TableLayout(axes=axes), cells)


def tables_in_columns(response: Response, around: Config) -> Explanation | None:
    """Returns an image's axes if each row of a matrix stores one or more whole tables (Mllama), otherwise None. Such a
    table has one row of the model's width for each patch and each other token."""
    field, old, new = response
    width, patch = around.get("hidden_size"), pair(around.get("patch_size"))
    if type(width) is not int or patch is None or len(old) != 2 or old[0] != new[0] or AREA.search(field.path[-1]):
        return None
    cells = next(cells_of(field, IMAGE_AXES, around))
    here, there = (math.prod(each.count(value) for each in cells) for value in (field.value, doubled(field)))
    tables, beyond = divmod(new[1] - old[1], width * max(there - here, 1))
    if beyond or tables < 1 or old[1] % (width * tables) or (others := old[1] // (width * tables) - here) < 0:
        return None
    axes = tuple(Axis(name, each.count(field.value)) for name, each in zip(IMAGE_AXES, cells, strict=True))
    return Explanation(TableLayout(axes=axes, dims=(1,), columns=width), cells, others)


@dataclass(frozen=True)
class Part:
    """The axes that one field sizes in one dimension. factor: the number of rows along all other axes of the dimension.
    others: the number of other rows."""

    axes: tuple[Axis, ...]
    cells: tuple[Cells, ...]
    factor: int
    others: int

    @property
    def rows(self) -> int:
        return math.prod(axis.rows for axis in self.axes)


def role_of(field: ConfigField, name: str, around: Config) -> Role | None:
    """Returns the role of a field for a table, or None if the field is a text length or unknown. name: the table's
    name. around: the config section that contains the field."""
    in_patches = pair(around.get("patch_size")) is not None or bool(
        {"patch_embed_hidden_size", "patch_length"} & set(around)
    )
    for role in ROLES:
        if role.field.search(field.path[-1]) and role.table.search(name) and in_patches >= role.in_patches:
            return role
    return None


def explain(name: str, responses: Sequence[Response], config: Config) -> Explanation | str:
    """Infers the axes of a tensor from its shapes for doubled config fields. Returns why if this is not possible."""
    if sides := limited(responses):
        return sides
    before, after = responses[0][1:]
    if any(len(old) != len(new) for _, old, new in responses):
        return "the number of its dimensions changes"
    choices: dict[int, list[list[Part]]] = {}  # for each dimension that changes: the axes that each field may give it
    for field, old, new in responses:
        around = section(config, field.path[:-1])
        if len(responses) == 1 and (columns := tables_in_columns(responses[0], around)):
            return columns
        role = role_of(field, name, around)
        if role is None:
            return f"it is unknown what {field} measures"
        changed = [dim for dim, size in enumerate(old) if new[dim] != size]
        apart = len(changed) == len(role.axes) > 1
        for at, dim in enumerate(changed):
            names = (role.axes[at],) if apart else role.axes
            choices.setdefault(dim, []).append(list(parts(name, field, names, around, (old[dim], new[dim]))))
    dims = tuple(sorted(choices))
    found = [consistent(choices[dim]) for dim in dims]
    if not all(found):
        return f"no axes of {' and '.join(str(field) for field, *_ in responses)} explain its shape, {before}"
    others = sum(chosen[0].others for chosen in found)
    if len(dims) > 1 and others:
        return f"its axes lie apart, with {others} other rows"
    axes, cells = zip(*(each for chosen in found for each in in_order(chosen)), strict=True)
    one_table = len(dims) == 1 and len(before) <= 3 and before[-1] == after[-1]
    in_rows = one_table and math.prod(before[:-1]) == before[dims[0]]
    in_rows = in_rows and (before[dims[0]] > 1 or dims[0] == len(before) - 2)  # a single row does not show where
    return Explanation(TableLayout(axes=axes, dims=() if in_rows else dims), cells, others)


def in_order(chosen: Sequence[Part]) -> list[tuple[Axis, Cells]]:
    """Returns the axes of one dimension in row-major order: time comes first in a video, but last in a sound."""
    pairs = [each for part in chosen for each in zip(part.axes, part.cells, strict=True)]
    return sorted(pairs, key=lambda each: ORDER.index(each[0].name) if each[0].name in ORDER else 0)


def parts(name: str, field: ConfigField, names: tuple[str, ...], around: Config, rows: Size) -> Iterator[Part]:
    """Yields the axes of a field that explain the numbers of rows before and after the field was doubled."""
    single = (names[1 if OF_WIDTH.search(name) else 0],) if len(names) == 2 else names
    for chosen in dict.fromkeys((names, single)):
        for cells in (*cells_of(field, chosen, around), *cells_by_square(field, chosen, rows)):
            sizes = [each.count(field.value) for each in cells]
            after = [each.count(doubled(field)) for each in cells]
            if min(sizes) < 1 or sizes == after:
                continue
            for kind in kinds_of(name, chosen):
                axes = tuple(Axis(axis, size, **kind) for axis, size in zip(chosen, sizes, strict=True))
                here = math.prod(axis.rows for axis in axes)
                there = math.prod(replace(axis, size=size).rows for axis, size in zip(axes, after, strict=True))
                factor, rest = divmod(rows[1] - rows[0], there - here)
                if factor >= 1 and not rest and (others := rows[0] - factor * here) >= 0:
                    yield Part(axes, cells, factor, others)


def cells_by_square(field: ConfigField, names: tuple[str, ...], rows: Size) -> Iterator[tuple[Cells, ...]]:
    """Yields the cells of a square grid whose side doubles when the field is doubled. CrossViT scales images, and
    TinyViT scales windows, by a factor before dividing them into cells."""
    height, width = pair(field.value) or (0, 0)
    if names != IMAGE_AXES or height != width or AREA.search(field.path[-1]):
        return
    side, beyond = divmod(rows[1] - rows[0], 3)
    if beyond or (side := math.isqrt(side)) < 1 or 3 * side * side != rows[1] - rows[0]:
        return
    stride = Fraction(height, side)
    yield tuple(Cells(field, at, stride, stride) for at in range(2))


def kinds_of(name: str, axes: tuple[str, ...]) -> Iterator[dict[str, bool]]:
    """Yields what the rows along the axes may be: cells or distances, then differences if the name suggests them."""
    yield {"relative": True, "signed": False} if OF_BIAS.search(name) or axes == ("distance",) else {}
    if OF_DIFFERENCES.search(name):
        yield {"relative": True}


def consistent(choices: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """Returns one Part per field of a dimension, chosen so that each factor is the number of rows of all other parts;
    () if no choice fits."""
    fitting = []
    for chosen in product(*choices):
        all_rows = math.prod(part.rows for part in chosen)
        if all(part.factor * part.rows == all_rows and part.others == chosen[0].others for part in chosen):
            fitting.append(chosen)
    return min(fitting, key=lambda chosen: chosen[0].others, default=())


def cells_of(field: ConfigField, names: tuple[str, ...], around: Config) -> Iterator[tuple[Cells, ...]]:
    """Yields the ways in which a field may size its axes, the most common way first."""
    sides = [int(axis == IMAGE_AXES[1]) for axis in names]
    if AREA.search(field.path[-1]):
        side = math.isqrt(field.value) if isinstance(field.value, int) else 0
        if side and side * side == field.value:
            yield tuple(Cells(field, side=0, area=True) for _ in names)
        return
    tubes = [around.get(name) for name in TUBELET]
    patch = pair(around.get("patch_size")) or next(
        (pair(tube[1:]) for tube in tubes if isinstance(tube, list | tuple)), None
    )
    if names == ("time",) or names == ("frequency",):
        steps = [tube[0] if isinstance(tube, list | tuple) else tube for tube in tubes if tube]
        stride = around.get(f"{names[0]}_stride")
        ways = [(step, step) for step in steps if type(step) is int]
        length, step = around.get("patch_length"), around.get("patch_stride")  # of PatchTST
        ways += [(length, step)] if type(length) is int and type(step) is int else []
        ways += [(patch[0], stride)] if patch and type(stride) is int else []
        for kernel, step in (*ways, (1, 1)):
            yield (Cells(field, 0, kernel, step),)
        return
    if names[0] not in IMAGE_AXES or IN_CELLS.search(field.path[-1]):
        yield tuple(Cells(field, side) for side in sides)
        return
    if patch:
        stride = pair(around.get("patch_stride")) or patch
        yield tuple(Cells(field, side, patch[side], stride[side]) for side in sides)
    staged = isinstance(around.get("patch_sizes"), list | tuple)  # patches of each stage, without padding
    for stride in STRIDES:  # a side that is no multiple is rounded up, or down without padding
        yield tuple(Cells(field, side, stride if staged else 1, stride) for side in sides)
