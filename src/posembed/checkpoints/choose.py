"""Which tables a new length or image size is for, and what each of them becomes."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, replace
from typing import Any

from posembed.checkpoints.found import FieldPath, FieldValue, Found, FoundTable
from posembed.checkpoints.layouts import pair
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout

# The field of a text's own length, where a model also has tables for other lengths (2-D boxes, episodes).
TEXT_LENGTH = ("max_position_embeddings", "n_positions")

NOT_TEXT = re.compile(r"source|audio|speech|vision|image|frames|time|acoustics|ep_len|2d|box|grid")


MOST_POSITIONS = 10_000_000


@dataclass(frozen=True)
class Target:
    """What tables of one config field become.

    tables: each with the layout that it gets and its new length. length: what a person may feed, before and after.
    value: the config field's new value; None where the tables have no field.
    image_size: (height, width) in pixels before and after, for grids.
    """

    tables: tuple[tuple[FoundTable, TableLayout, int], ...]
    length: tuple[int, int]
    value: FieldValue | None
    image_size: tuple[tuple[int, int], tuple[int, int]] | None = None
    note: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the positions are those of text, by the words of the config field (Whisper's encoder hears)."""
        return not any(NOT_TEXT.search(name) for name in self.tables[0][0].config_field or ())


def line_target(found: Found, length: int, key: str | None) -> Target:
    """The tables of positions in a line that get a new usable length.

    Raises:
        ArgumentError: a length that is no length, or the one that is there.
        CheckpointError: no such table, several that could be meant, or one that is not understood.
    """
    if type(length) is not int or not 1 <= length <= MOST_POSITIONS:
        raise ArgumentError(
            f"--length (length=...) counts positions, at least 1, at most {MOST_POSITIONS:,}; got {length!r}"
        )
    tables = choose(found, key, grid=False)
    old = min(table.length or 0 for table in tables)
    if length == old:
        raise ArgumentError(f"{tables[0].key} already holds {old} positions; pass another length")
    changed = []
    for table in tables:
        assert table.layout is not None
        assert table.length is not None
        # Tables of one field grow by the same number of rows, also where one of them reserves fewer.
        changed.append((table, table.layout, table.length + length - old))
    value = tables[0].config_value
    note = ""
    if tables[0].found_by == "name" and tables[0].layout == TableLayout():
        note = (
            f"{tables[0].key}: nothing says how its rows are read; it is assumed that no row is reserved "
            "(RoBERTa and BART reserve two). Give the model's folder, with its config, where that is wrong"
        )
    new_value = value + length - old if isinstance(value, int) else None
    return Target(tuple(changed), (old, length), new_value, note=note)


def grid_target(
    found: Found, *, image_size: tuple[int, int] | None, grid: tuple[int, int] | None, key: str | None
) -> Target:
    """The tables of image patches that get a new grid, given as (height, width) in patches or in pixels.

    Raises:
        ArgumentError: sizes that are no sizes, an image without a patch, or the grid that is there.
        CheckpointError: as for ``line_target``.
    """
    grid, image_size = two_sides("--grid (grid=...)", grid), two_sides("--image-size (image_size=...)", image_size)
    tables = choose(found, key, grid=True)
    first = tables[0]
    assert first.layout is not None
    assert first.layout.grid is not None
    if grid is None:
        assert image_size is not None
        if first.patch is None:
            raise ArgumentError(f"nothing says how many pixels a patch of {first.key} has; pass --grid (grid=...)")
        grid = image_size[0] // first.patch[0], image_size[1] // first.patch[1]
    if not 1 <= min(grid) * max(grid) <= MOST_POSITIONS:
        raise ArgumentError(f"expected a grid of 1 to {MOST_POSITIONS:,} patches; got {grid[0]} x {grid[1]}")
    if grid == first.layout.grid:
        raise ArgumentError(f"{first.key} already holds a grid of {grid[0]} x {grid[1]}; pass another size")
    sizes = pixels(first, grid, image_size)
    value: FieldValue | None = None
    note = ""
    if sizes is not None and first.patch is not None:
        height, width = sizes[1]
        value = height if height == width and isinstance(first.config_value, int) else (height, width)
        unseen = max(height % first.patch[0], width % first.patch[1])
        note = f"{height} x {width} pixels are no whole patches: the last {unseen} are not seen" if unseen else ""
    changed = tuple((t, replace(t.layout or TableLayout(), grid=grid), math.prod(grid)) for t in tables)
    return Target(changed, (math.prod(first.layout.grid), math.prod(grid)), value, sizes, note)


def two_sides(option: str, value: Any) -> tuple[int, int] | None:
    """(height, width) as whole numbers, from any pair of them; None stays."""
    if value is None:
        return None
    try:
        height, width = map(operator.index, value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{option}: expected two whole numbers, (height, width); got {value!r}") from error
    if min(height, width) < 1:
        raise ArgumentError(f"{option}: expected sides of at least 1; got {value!r}")
    return height, width


def pixels(
    table: FoundTable, grid: tuple[int, int], image_size: tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The image's (height, width) before and after; None where nothing says how large a patch is."""
    if table.patch is None or table.layout is None or table.layout.grid is None:
        return None
    old, new = ((g[0] * table.patch[0], g[1] * table.patch[1]) for g in (table.layout.grid, grid))
    return pair(table.config_value) or old, image_size or new


def choose(found: Found, key: str | None, *, grid: bool) -> list[FoundTable]:
    """The tables that are meant: the named one, or the only candidate, and the others of its config field."""
    kind = "a grid of patches" if grid else "positions in a line"
    if key is not None:
        named = [table for table in found.tables if table.key == key]
        if not named:
            raise CheckpointError(f"--table {key}: not a position table of this checkpoint; {listing(found)}")
        tables = with_companions(found, named[0])
    else:
        tables = only_candidates(found, kind, grid=grid)
    for table in tables:
        if table.layout is None or (table.doubt and table.found_by != "name"):
            raise CheckpointError(f"{table.key}: not resized: {table.doubt}")
        if (table.layout.grid is not None) != grid:
            remedy = "pass --length (length=...)" if grid else "pass --image-size or --grid (image_size=..., grid=...)"
            raise CheckpointError(f"{table.key}: its positions are not {kind}; {remedy}")
    return tables


def only_candidates(found: Found, kind: str, *, grid: bool) -> list[FoundTable]:
    candidates = [
        table
        for table in found.tables
        if table.layout is not None and (table.layout.grid is not None) == grid and table.found_by != "name"
    ]
    fields = list(dict.fromkeys(table.config_field for table in candidates if table.kind == "learned"))
    fields = fields or list(dict.fromkeys(table.config_field for table in candidates))
    texts: list[FieldPath | None] = [field for field in fields if field and field[-1] in TEXT_LENGTH]
    if len(fields) > 1 and len(texts) == 1:
        fields = texts
    if not fields:
        raise CheckpointError(f"no table of {kind} can be resized here without doubt; {listing(found)}")
    if len(fields) > 1:
        keys = ", ".join(table.key for table in candidates)
        raise CheckpointError(f"several tables could be meant; name one with --table (table=...): {keys}")
    return [table for table in candidates if table.config_field == fields[0]]


def with_companions(found: Found, table: FoundTable) -> list[FoundTable]:
    """A table, and those whose length is the same config field."""
    if table.config_field is None:
        return [table]
    others = [other for other in found.tables if other.config_field == table.config_field and other is not table]
    return [table, *others]


def listing(found: Found) -> str:
    if not found.tables:
        return f"no position table was found: {why_none(found)}"
    return "found " + "; ".join(f"{table.key}{f' ({table.doubt})' if table.doubt else ''}" for table in found.tables)


def why_none(found: Found) -> str:
    """What was established where no table was found."""
    if found.blocked:
        return "; ".join(dict.fromkeys(found.blocked.values()))
    if found.known is None:
        return "no tensor has the name and shape of one"
    return "no length or image size in config.json changes the shape of a tensor, and none has the name of a table"
