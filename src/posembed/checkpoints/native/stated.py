"""What the user states about the rows of a table in one file: which are reserved, and the grid of the others."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posembed.checkpoints.layouts import A_GUESS, GUESSED_PREFIXES, OF_TEXTS, guessed_grid, has_rows, projection_beside
from posembed.checkpoints.native.sizes import AXES, kind_of, sides
from posembed.checkpoints.position_tables import FoundTable, PositionTable, Size, Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.training_files import Place
from posembed.tables.layout import Axis, TableLayout
from posembed.tables.modules import is_table_name, parent

BESIDE_IMAGES = re.compile(r"(cls|class|dist)_token$|(to_)?patch_emb")
"""Matches the names of tensors in the module of a table of images."""
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
    patches, inside = projection_beside(table.key, tensors), f"{parent(table.key)}.".lstrip(".")
    beside = [name.removeprefix(inside) for name in tensors if name.startswith(inside)]
    named = any(map(BESIDE_IMAGES.match, beside)) or (by_shape and len(table.shape) == 3)
    return (patches is not None and parent(parent(patches)) == parent(table.key)) or (
        named and not any(map(OF_TEXTS.match, beside))
    )


def takes_rows(table: FoundTable) -> bool:
    """Whether the user may state which rows of a table are reserved: those of positions, patches or frames."""
    layout = table.layout if isinstance(table, PositionTable) else TableLayout()
    others = layout.dims or any(axis.relative for axis in layout.axes) or len(table.shape) > 3
    return not others and (is_table_name(table.key) or [axis.name for axis in layout.axes] == ["time"])


def with_given_rows(
    tables: Mapping[str, FoundTable],
    rows: Rows,
    named: str,
    on_grid: bool | None,
    sizes: Mapping[Place, Any],
    tensors: Tensors,
) -> dict[str, FoundTable]:
    """Returns the named table, or without a name all of the requested kind, with the reserved rows that the user
    states."""
    of_kind = tables.values() if named not in tables else [tables[named]]
    front, tail, problem = rows.reserved or 0, rows.tail or 0, ""
    found: dict[str, FoundTable] = {}
    for table in filter(takes_rows, of_kind):
        axes = table.layout.axes if isinstance(table, PositionTable) else ()
        in_time, of_images = len(axes) == 1, len(axes) == 2 or (on_grid and is_of_images(table, tensors))
        left = table.rows - front - tail
        if left < 1:
            problem = problem or f"{table.key}: has {table.rows} rows, and none is left beside {front + tail} reserved"
        elif in_time:
            time = TableLayout(prefix=front, axes=(Axis(axes[0].name, left),), tail=tail)
            found[table.key] = table.read_by(time, doubt=table.doubt)
        elif on_grid is not False and (of_images or (on_grid and table.key == named)):
            fronts = GUESSED_PREFIXES if rows.reserved is None else (front,)
            found[table.key] = guessed_grid(table, fronts, tail, stated_grids(table, sizes, tensors))
        elif not axes or (table.key == named and has_rows(tensors[named])):
            line = table.doubt if not axes else A_GUESS
            found[table.key] = table.read_by(TableLayout(reserved=front, tail=tail), doubt=line)
    if not found and (problem or isinstance(tables.get(named), PositionTable)):
        raise CheckpointError(f"{problem or f'{named}: its rows are no positions, patches or frames'} ({STATED})")
    return found


def on_given_grid(tables: Mapping[str, FoundTable], rows: Rows, named: str, tensors: Tensors) -> dict[str, FoundTable]:
    """Returns the tables that the user's grid fits: the named one, and those of images, or if there are none, any. The
    rows that are left stand before the grid."""
    grid, tail = rows.old_grid or (), rows.tail or 0
    if min(grid) < 1:
        raise CheckpointError(f"--old-grid (old_grid=...): each side is at least 1; got {' x '.join(map(str, grid))}")
    fronts = {key: table.rows - math.prod(grid) - tail for key, table in tables.items() if takes_rows(table)}
    of_images = [key for key in fronts if is_of_images(tables[key], tensors)]
    most = math.prod(grid) if rows.reserved is None else rows.reserved
    fits = {key: front for key, front in fronts.items() if (rows.reserved or 0) <= front <= most}
    if fronts and (not fits or (named in fronts and named not in fits)):
        key = named if named in fronts else (of_images or [*fronts])[0]
        left, cells = fronts[key], " x ".join(map(str, grid))
        wrong = f"not {rows.reserved or 0} reserved rows, a grid of {cells} and {tail} rows after it"
        if rows.reserved is None and left > 0:
            wrong = (
                f"{left} more than a grid of {cells} and {tail} rows after it; if they are before it, add --reserved"
            )
        raise CheckpointError(f"{key}: has {tables[key].rows} rows, {wrong} ({STATED})")
    fits = {key: front for key, front in fits.items() if key in of_images or key == named} or fits
    least = fits[named] if named in fits else min(fits.values(), default=0)
    axes = tuple(map(Axis, AXES[-len(grid) :], grid))
    found: dict[str, FoundTable] = {}
    for key, front in fits.items():
        if front == least or front in GUESSED_PREFIXES:
            layout, table = TableLayout(prefix=front, axes=axes, tail=tail), tables[key]
            found[key] = table.read_by(layout, doubt=table.doubt if table.fixed else A_GUESS)
    return found


def stated_grids(table: FoundTable, sizes: Mapping[Any, Any], tensors: Tensors) -> dict[Size, Size]:
    """Maps the grid of patches of each image size in the settings to that image size. If a side is no multiple of the
    patch, no patch covers its last pixels."""
    projection = projection_beside(table.key, tensors)
    stated = [sides(value) for place, value in sizes.items() if kind_of(place) == "image_size"]
    patch = tuple(tensors[projection].shape[-2:]) if projection else (1, 1)
    return {(image[0] // patch[0], image[1] // patch[1]): image for image in stated if image and projection}
