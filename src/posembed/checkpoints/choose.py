"""Chooses the tables that a new length or image size applies to, and computes their new sizes."""

from __future__ import annotations

import math
import operator
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from posembed.checkpoints.found import ConfigField, Found, FoundTable, PositionTable, Size, TableSize, pair
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout

# The fields of the text length, for models that also have tables for other lengths (2-D boxes, episodes).
TEXT_LENGTH = ("max_position_embeddings", "n_positions")
NOT_TEXT = re.compile(r"source|audio|speech|vision|image|frames|time|acoustics|ep_len|2d|box|grid")
MOST_POSITIONS = 10_000_000


@dataclass(frozen=True)
class Target:
    """The new sizes of the tables of one config field.

    changes: the new size of each table. The table that the user named, if any, comes first.
    length: the usable length before and after.
    value: the field's new value, as JSON; None if there is no field, or if its value does not determine the rows.
    image_size: for grids, the image size in pixels before and after. note: a remark for the user.
    """

    changes: tuple[TableSize, ...]
    length: tuple[int, int]
    value: int | list[int] | None
    image_size: tuple[Size, Size] | None = None
    note: str = ""

    @property
    def table(self) -> PositionTable:
        return self.changes[0].table

    @property
    def field(self) -> ConfigField | None:
        return self.table.field

    @property
    def is_text(self) -> bool:
        """Whether the positions belong to text, judged by the name of the config field. In Whisper's encoder, they
        belong to audio."""
        return not any(NOT_TEXT.search(name) for name in (self.field.path if self.field else ()))


def line_target(found: Found, length: int, key: str | None) -> Target:
    with suppress(TypeError):  # numbers of other libraries
        length = length if isinstance(length, bool) else operator.index(length)
    if type(length) is not int or not 1 <= length <= MOST_POSITIONS:
        raise ArgumentError(f"--length (length=...) takes 1 to {MOST_POSITIONS:,} positions; got {length!r}")
    tables = choose(found, key, grid=False)
    first, old = tables[0], min(table.length for table in tables)
    if length == old:
        raise ArgumentError(f"{first.key} already holds {old} positions; pass another length")
    # Tables of one field grow by the same number of rows, even if one of them reserves fewer.
    changes = tuple(TableSize(table, table.layout, table.length + length - old) for table in tables)
    value = first.field.value + length - old if first.field and isinstance(first.field.value, int) else None
    note = ""
    if first.found_by == "name" and first.layout == TableLayout():
        note = (
            f"{first.key}: the layout of its rows is unknown; it is assumed that no row is reserved "
            "(RoBERTa and BART reserve two). If that is wrong, give the model's folder with its config"
        )
    return Target(changes, (old, length), value, note=note)


def grid_target(found: Found, *, image_size: Size | None, grid: Size | None, key: str | None) -> Target:
    """Returns the target for a new grid of image patches. ``image_size`` is (height, width) in pixels, ``grid`` in
    patches."""
    grid, image_size = two_sides("--grid (grid=...)", grid), two_sides("--image-size (image_size=...)", image_size)
    tables = choose(found, key, grid=True)
    first, patch = tables[0], tables[0].patch
    old_grid = first.layout.grid or (0, 0)
    if grid is None:
        if patch is None or image_size is None:
            raise ArgumentError(f"the patch size of {first.key} in pixels is unknown; pass --grid (grid=...)")
        grid = image_size[0] // patch[0], image_size[1] // patch[1]
    if not 1 <= math.prod(grid) <= MOST_POSITIONS:
        raise ArgumentError(f"expected a grid of 1 to {MOST_POSITIONS:,} patches; got {grid[0]} x {grid[1]}")
    if grid == old_grid:
        raise ArgumentError(f"{first.key} already holds a grid of {grid[0]} x {grid[1]}; pass another size")
    value, note, sizes = None, "", None
    if patch is not None:
        field_value = None if first.field is None else first.field.value
        old_size = pair(field_value) or (old_grid[0] * patch[0], old_grid[1] * patch[1])
        height, width = image_size or (grid[0] * patch[0], grid[1] * patch[1])
        sizes = old_size, (height, width)
        value = height if height == width and isinstance(field_value, int) else [height, width]
        unseen = max(height % patch[0], width % patch[1])
        note = f"{height} x {width} pixels are not whole patches: the last {unseen} are not seen" if unseen else ""
    changes = tuple(TableSize(table, table.layout.on_grid(*grid), math.prod(grid)) for table in tables)
    return Target(changes, (math.prod(old_grid), math.prod(grid)), value, sizes, note)


def two_sides(option: str, value: Any) -> Size | None:
    """Converts any pair of whole numbers to (height, width). Returns None if ``value`` is None."""
    if value is None:
        return None
    try:
        height, width = map(operator.index, value)
        if min(height, width) < 1:
            raise ValueError
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{option}: expected (height, width), each at least 1; got {value!r}") from error
    return height, width


def choose(found: Found, key: str | None, *, grid: bool) -> list[PositionTable]:
    """Returns the named table, or by default the only candidate, and the other tables of the same config field."""
    kind = "a grid of patches" if grid else "positions in a line"
    named = [table for table in found.tables if table.key == key]
    if key is not None and not named:
        raise CheckpointError(f"--table {key}: not a position table of this checkpoint; {listing(found)}")
    tables = [*named, *companions(found, named[0])] if named else only_candidates(found, kind, grid=grid)
    chosen = []
    for table in tables:
        if not isinstance(table, PositionTable) or (table.doubt and table.found_by != "name"):
            raise CheckpointError(f"{table.key}: not resized: {table.doubt}")
        if (table.layout.grid is not None) != grid:
            remedy = "pass --length (length=...)" if grid else "pass --image-size or --grid (image_size=..., grid=...)"
            raise CheckpointError(f"{table.key}: its positions are not {kind}; {remedy}")
        chosen.append(table)
    return chosen


def only_candidates(found: Found, kind: str, *, grid: bool) -> list[FoundTable]:
    candidates = [
        table for table in found.understood if (table.layout.grid is not None) == grid and table.found_by != "name"
    ]
    fields = list(dict.fromkeys(table.field for table in candidates if table.kind == "learned"))
    fields = fields or list(dict.fromkeys(table.field for table in candidates))
    texts = [field for field in fields if field and field.path[-1] in TEXT_LENGTH]
    if len(fields) > 1 and len(texts) == 1:
        fields = [texts[0]]
    if not fields:
        raise CheckpointError(f"no table of {kind} is understood well enough to be resized; {listing(found)}")
    if len(fields) > 1:
        keys = ", ".join(table.key for table in candidates)
        raise CheckpointError(f"several tables could be meant; choose one with --table (table=...): {keys}")
    return [table for table in candidates if table.field == fields[0]]


def companions(found: Found, table: FoundTable) -> list[FoundTable]:
    return [other for other in found.tables if table.field and other.field == table.field and other.key != table.key]


def listing(found: Found) -> str:
    if not found.tables:
        return f"no position table was found: {why_none(found)}"
    return "found " + "; ".join(f"{table.key}{f' ({table.doubt})' if table.doubt else ''}" for table in found.tables)


def why_none(found: Found) -> str:
    """Returns the reason why no table was found."""
    if found.blocked:
        return "; ".join(dict.fromkeys(found.blocked.values()))
    if found.model is None:
        return "no tensor has the name and shape of a position table"
    return "no length or image size in config.json changes the shape of a tensor, and no tensor has the name of a table"
