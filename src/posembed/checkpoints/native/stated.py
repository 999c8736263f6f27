"""What the user states about the rows of a table in one file: which are reserved, and the grid of the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from posembed.checkpoints.layouts import A_GUESS, GUESSED_PREFIXES, OF_TEXTS, guessed_grid, has_rows, projection_beside
from posembed.checkpoints.native.sizes import AXES, LINES, kind_of, plain, sides
from posembed.checkpoints.position_tables import AnyTensor, FoundTable, PositionTable, Size, Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.training_files import Place
from posembed.tables.layout import Axis, TableLayout
from posembed.tables.modules import MOST_LISTED, is_table_name, parent
from posembed.words import listed

BESIDE_IMAGES = re.compile(r"(cls|class|dist)_token$|(to_)?patch_emb")
"""Matches the names of tensors in the module of a table of images."""
SPECIAL_TOKENS = re.compile(r"(cls|class|dist|reg(ister)?|storage)_tokens?$")
STATED = "--reserved, --old-grid, --tail"


@dataclass(frozen=True)
class Rows:
    """What the user states about a table's rows: the numbers of reserved rows before (``reserved``) and after
    (``tail``) the positions, and the grid of the positions. None means not stated."""

    reserved: int | None = None
    tail: int | None = None
    old_grid: tuple[int, ...] | None = None


AS_FOUND = Rows()


def is_of_images(table: FoundTable, tensors: Tensors, *, by_shape: bool = True) -> bool:
    """Whether a convolution that makes patches, or a class token, is in a table's own module. by_shape: whether a table
    (1, N, D) is one of images too, if no tokens of a text are in its module."""
    beside = tensors_beside(table, tensors)
    named = any(map(BESIDE_IMAGES.match, beside)) or (by_shape and len(table.shape) == 3)
    return makes_patches(table, tensors) or (named and not any(map(OF_TEXTS.match, beside)))


def is_of_texts(table: FoundTable, tensors: Tensors) -> bool:
    """Whether tokens of a text, and nothing of images, are in a table's own module."""
    beside = tensors_beside(table, tensors)
    of_images = makes_patches(table, tensors) or any(map(BESIDE_IMAGES.match, beside))
    return any(map(OF_TEXTS.match, beside)) and not of_images


def makes_patches(table: FoundTable, tensors: Tensors) -> bool:
    patches = projection_beside(table.key, tensors)
    return patches is not None and parent(parent(patches)) == parent(table.key.removesuffix(".weight"))


def special_tokens(table: FoundTable, tensors: Tensors) -> int:
    """Returns the number of class, distillation and register tokens in a table's own module."""
    beside = tensors_beside(table, tensors)
    return sum(math.prod(each.shape[:-1]) for name, each in beside.items() if SPECIAL_TOKENS.match(name))


def tensors_beside(table: FoundTable, tensors: Tensors) -> dict[str, AnyTensor]:
    """Returns all tensors in a table's own module, by their names in it."""
    inside = f"{parent(table.key.removesuffix('.weight'))}.".lstrip(".")
    return {key.removeprefix(inside): each for key, each in tensors.items() if key.startswith(inside)}


def axes_of(table: FoundTable) -> tuple[Axis, ...]:
    return table.layout.axes if isinstance(table, PositionTable) else ()


def takes_rows(table: FoundTable) -> bool:
    """Whether rows of a table may be reserved: of positions, patches or frames in one dimension of the tensor."""
    apart = isinstance(table, PositionTable) and (table.layout.dims or any(axis.relative for axis in axes_of(table)))
    return not apart and len(table.shape) <= 3 and (is_table_name(table.key) or is_of_frames(table))


def is_of_frames(table: FoundTable) -> bool:
    return [axis.name for axis in axes_of(table)] == ["time"]


def has_sides(table: FoundTable, grid: tuple[int, ...] | None) -> bool:
    """Whether a tensor has one dimension for each side of a grid."""
    return isinstance(table, PositionTable) and table.layout.grid == grid and bool(table.layout.dims)


def refuse_unused(rows: Rows, stated: AbstractSet[str], changed: Iterable[str]) -> None:
    """Raises CheckpointError if what the user states of rows holds for none of the tables that change."""
    flags, keys = [f"--{name.replace('_', '-')}" for name, value in vars(rows).items() if value], [*changed]
    if flags and stated.isdisjoint(keys):
        raise CheckpointError(
            f"{listed(flags)}: of the tables that change ({listed(keys[:MOST_LISTED])}), none has such rows; leave "
            "this out, or name the table with --table (table=...)"
        )


def with_given_rows(
    tables: Mapping[str, FoundTable],
    rows: Rows,
    named: str,
    on_grid: bool | None,
    sizes: Mapping[Place, Any],
    tensors: Tensors,
) -> dict[str, FoundTable]:
    """Returns the named table, or without a name all of the requested kind, with the reserved rows that the user
    states. A table for which this cannot hold is not in the result; if it holds for none, the first is refused."""
    found: dict[str, FoundTable] = {}
    problem, others = "", not all(map(is_of_frames, filter(takes_rows, tables.values())))
    of_others = others and not named and bool(rows.reserved or rows.tail)  # unless the settings say it of frames too
    for table in [tables[named]] if named in tables else tables.values():
        if of_others and is_of_frames(table) and not are_frames(table, rows, sizes):
            continue
        given = given_rows(table, rows, table.key == named, on_grid, sizes, tensors) if takes_rows(table) else None
        if isinstance(given, PositionTable):
            found[table.key] = given
        elif given is not None:
            problem = problem or f"{table.key}: has {table.rows} rows, and {given}"
    known = isinstance(tables.get(named), PositionTable) and not takes_rows(tables[named])
    if known and (rows.reserved or rows.tail):
        problem = f"{named}: none of its rows can be reserved"
    if not found and problem and (named or rows.old_grid is None):
        raise CheckpointError(f"{problem} ({STATED})")
    return found


def are_frames(table: FoundTable, rows: Rows, sizes: Mapping[Place, Any]) -> bool:
    """Whether a setting has the number of frames that a table has beside the stated rows."""
    left = table.rows - (rows.reserved or 0) - (rows.tail or 0)
    return left in [plain(value) for place, value in sizes.items() if kind_of(place) == "num_frames"]


def given_rows(
    table: FoundTable,
    rows: Rows,
    is_named: bool,
    on_grid: bool | None,
    sizes: Mapping[Place, Any],
    tensors: Tensors,
) -> PositionTable | str | None:
    """Returns a table with the stated rows, or why it has none such; None if it is not of the requested kind."""
    axes, front, tail = axes_of(table), rows.reserved or 0, rows.tail or 0
    left = table.rows - front - tail
    if (rows.old_grid is not None or len(axes) > 2) and not is_of_frames(table):
        return None
    if left < 1:
        return f"none is left beside {front + tail} reserved"
    if is_of_frames(table):
        return table.read_by(TableLayout(prefix=front, axes=(Axis("time", left),), tail=tail), doubt=table.doubt)
    if on_grid is not False and (axes or (on_grid and (is_named or is_of_images(table, tensors)))):
        fronts = GUESSED_PREFIXES if rows.reserved is None else (front,)
        read = guessed_grid(table, fronts, tail, stated_grids(table, sizes, tensors))
        wrong = f"the {left} beside {front + tail} reserved are no square; pass --old-grid"
        return read if isinstance(read, PositionTable) else wrong
    if axes and not (is_named and has_rows(tensors[table.key])):
        return None
    if rows.reserved is None and isinstance(table, PositionTable) and not axes:
        return table.read_by(replace(table.layout, tail=tail), doubt=table.doubt)
    return table.read_by(TableLayout(reserved=front, tail=tail), doubt=A_GUESS if axes else table.doubt)


def on_given_grid(
    tables: Mapping[str, FoundTable], rows: Rows, named: str, sizes: Mapping[Place, Any], tensors: Tensors
) -> dict[str, FoundTable]:
    """Returns the tables that the user's grid fits: the named one and those of images, or without these, any. The rows
    that are left stand before the grid."""
    grid, tail = rows.old_grid or (), rows.tail or 0
    if min(grid) < 1:
        raise CheckpointError(f"--old-grid (old_grid=...): each side is at least 1; got {' x '.join(map(str, grid))}")
    fitting = {key: each for key, each in tables.items() if takes_rows(each) and not is_of_frames(each)}
    if (named and named not in fitting) or (not named and any(has_sides(each, grid) for each in tables.values())):
        return {}
    fronts = {key: each.rows - math.prod(grid) - tail for key, each in fitting.items()}
    most = math.prod(grid) if rows.reserved is None else rows.reserved
    fits = {key: front for key, front in fronts.items() if (rows.reserved or 0) <= front <= most}
    of_images = [key for key in fronts if is_of_images(tables[key], tensors)]
    if fronts and (not fits or (named and named not in fits)):
        key = named or (of_images or [*fronts])[0]
        left, cells = fronts[key], " x ".join(map(str, grid))
        wrong = f"not {rows.reserved or 0} reserved rows, a grid of {cells} and {tail} rows after it"
        if rows.reserved is None and left > 0:
            wrong = (
                f"{left} more than a grid of {cells} and {tail} rows after it; if they are before it, add --reserved"
            )
        raise CheckpointError(f"{key}: has {tables[key].rows} rows, {wrong} ({STATED})")
    in_line = {plain(value) for place, value in sizes.items() if kind_of(place) in LINES and type(value) is int}
    beside = {key for key in fits if is_of_images(tables[key], tensors, by_shape=False)}
    images = [key for key in fits if key in beside or (key in of_images and tables[key].rows not in in_line)]
    chosen = [key for key in fits if key in images or key == named] or [*fits]
    least = fits[named] if named else min((fits[key] for key in chosen), default=0)
    axes = tuple(map(Axis, AXES[-len(grid) :], grid))
    found: dict[str, FoundTable] = {}
    for key in chosen:
        # Other numbers of rows may precede the grid where its own tokens show so, as in a pair of encoder and decoder.
        shown = (*GUESSED_PREFIXES, special_tokens(tables[key], tensors)) if key in beside else ()
        if fits[key] in (least, *shown):
            layout, table = TableLayout(prefix=fits[key], axes=axes, tail=tail), tables[key]
            found[key] = table.read_by(layout, doubt=table.doubt if table.fixed else A_GUESS)
    return found


def stated_grids(table: FoundTable, sizes: Mapping[Any, Any], tensors: Tensors) -> dict[Size, Size]:
    """Maps the grid of patches of each image size in the settings to that image size. If a side is no multiple of the
    patch, no patch covers its last pixels."""
    projection = projection_beside(table.key, tensors)
    stated = [sides(value) for place, value in sizes.items() if kind_of(place) == "image_size"]
    patch = tuple(tensors[projection].shape[-2:]) if projection else (1, 1)
    return {(image[0] // patch[0], image[1] // patch[1]): image for image in stated if image and projection}
