"""Chooses the tables that a new length or image size applies to, and computes their new sizes."""

from __future__ import annotations

import math
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from posembed.checkpoints.position_tables import ConfigField, Found, FoundTable, PositionTable, Size, TableSize, pair
from posembed.checkpoints.responses import WINDOWED
from posembed.checkpoints.sources.configs import source_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import IMAGE_AXES, SIDES, TableLayout, are_sides
from posembed.words import listed

# The fields of the text length, for models that also have tables for other lengths (2-D boxes, episodes).
TEXT_LENGTH = ("max_position_embeddings", "n_positions")
NOT_TEXT = re.compile(r"source|audio|speech|vision|image|frames|time|acoustics|ep_len|2d|box|grid|window|mel|patches")
MOST_POSITIONS = 10_000_000
MOST_LISTED = 6
QUERIES_NOTE = (
    "Object queries have no order. DETR's authors advise against another number in a fine-tuning "
    "(github.com/facebookresearch/detr/issues/9); fine-tuning with the first half of the queries is reported to train "
    "faster than with new ones (github.com/huggingface/transformers/issues/28865)"
)
PAIRS = ({"image_size", "patch_size"}, {"image_size", "frames"}, {"grid", "frames"})  # of sizes given together
PATCHES_NOTE = (
    "A ViT that was trained with patches of one size loses accuracy with others until it is fine-tuned "
    "(arXiv:2212.08013, figure 2); images that grow with their patches keep the same grid"
)


@dataclass(frozen=True, kw_only=True)
class NewSize:
    """The new size that a resize asks for, as in ``posembed.resize_checkpoint``. One field is set; others are None.

    Allowed pairs are image_size with patch_size, image_size with frames, and grid with frames.
    """

    length: int | None = None
    image_size: Size | int | None = None
    patch_size: Size | int | None = None
    grid: Size | None = None
    window: Size | int | None = None
    frames: int | None = None
    queries: int | None = None
    buckets: int | None = None

    def refuse_others(self) -> None:
        """Refuses no size, and more than one size except the allowed pairs."""
        if self.window is not None and self.image_size is not None:
            raise ArgumentError(
                "--window and --image-size (window=..., image_size=...) are two resizes: no window may be larger than "
                "its map. First pass --image-size alone or, if no table depends on it, write it into config.json. Then "
                "pass --window alone, with the result as the checkpoint"
            )
        given = {name for name, size in vars(self).items() if size is not None}
        if len(given) != 1 and given not in PAIRS:
            raise ArgumentError(
                "expected one of --length, --image-size, --patch-size, --grid, --window, --frames, --queries and "
                "--buckets (length=, image_size=, patch_size=, grid=, window=, frames=, queries=, buckets=), or "
                "--image-size with --patch-size or --frames, or --grid with --frames"
            )


@dataclass(frozen=True)
class Target:
    """The new sizes of the tables that depend on one config field.

    changes: the new size of each table. The table that the user named, if any, comes first.
    length: the usable length (the number of positions) before and after.
    values: the new value, as JSON, of each config field that changes, with the tables' own field first; {} if no field
    determines the rows. image_size: for grids, the image size in pixels before and after. note: a remark for the user.
    patch_size: the patch size in pixels before and after, if it changes.
    """

    changes: tuple[TableSize, ...]
    length: tuple[int, int]
    values: Mapping[ConfigField, int | list[int]]
    image_size: tuple[Size, Size] | None = None
    note: str = ""
    patch_size: tuple[Size, Size] | None = None

    @property
    def table(self) -> PositionTable:
        return self.changes[0].table

    @property
    def field(self) -> ConfigField | None:
        return next(iter(self.values), self.table.field)

    @property
    def value(self) -> int | list[int] | None:
        return next(iter(self.values.values()), None)

    @property
    def limited(self) -> TableSize | None:
        """The new size of the first table of limited differences, or None if there is no such table."""
        return next((change for change in self.changes if are_sides(change.layout.axes)), None)

    @property
    def of_window(self) -> bool:
        return self.field is not None and self.limited is None and bool(WINDOWED.search(self.field.path[-1]))

    @property
    def sizes(self) -> tuple[str, str, str]:
        """The sizes before and after as text, such as 14 x 14 and 24 x 24, and the unit, such as patches."""
        change, layout = self.changes[0], self.table.layout
        if self.is_text or not layout.axes or are_sides(layout.axes):
            old, new = map(str, self.length)
            return old, new, "differences" if are_sides(layout.axes) else "positions"
        before, after = (" x ".join(str(axis.size) for axis in each.axes) for each in (layout, change.layout))
        return before, after, self.unit

    @property
    def unit(self) -> str:
        """What the cells along the axes are, in words."""
        names = [axis.name for axis in self.table.layout.axes]
        if self.of_window:
            return "cells of a window"
        if "time" not in names and set(names) & set(IMAGE_AXES):
            return "patches"
        if len(names) > 1:
            return "cells"
        if names == ["time"] and self.field is not None and "frames" in self.field.path[-1]:
            return "frames"
        return {"time": "time steps", "bucket": "buckets", "query": "object queries"}.get(names[0], "positions")

    @property
    def is_text(self) -> bool:
        """Whether the positions belong to text, judged by the name of the config field. In Whisper's encoder, for
        example, the positions belong to audio."""
        return not self.table.layout.axes and not any(
            NOT_TEXT.search(name) for name in (self.field.path if self.field else ())
        )


def position_count(option: Option, value: Any) -> int:
    """Converts an integer of any library to int. Raises ArgumentError unless it is from 1 to MOST_POSITIONS."""
    if not 1 <= (count := operator.index(value)) <= MOST_POSITIONS:
        raise ArgumentError(f"{option.flags} takes 1 to {MOST_POSITIONS:,}; got {value!r}")
    return count


def line_target(found: Found, length: int, key: str | None) -> Target:
    length = position_count(TEXT, length)
    tables = choose(found, key, TEXT)
    others = [] if key else [table.key for table in found.understood if TEXT.fields(table) and table not in tables]
    if all(table.layout.axes for table in tables):
        return axis_target(found, TEXT, length, key)
    limited = [table for table in tables if table.layout.axes]  # of the same field
    tables = [table for table in tables if not table.layout.axes]
    first, old = tables[0], min(table.length for table in tables)
    if length == old:
        raise ArgumentError(f"{first.key} already holds {old} positions; pass another length")
    # Tables of one field grow by the same number of rows, even if one of them reserves fewer.
    changes = tuple(TableSize(table, table.layout, table.length + length - old) for table in tables)
    field = first.field
    values = {field: field.value + length - old} if field is not None and isinstance(field.value, int) else {}
    changes += tuple(table.sized(values) for table in limited if values)
    note = ""
    if others:
        flags = listed([f"--table {shlex.quote(other)}" for other in others], "or")
        note = f"{first.key} is what --length means in this model; for its other tables, give {flags} too"
    if first.found_by == "name" and first.layout == TableLayout() and found.stated is None:
        note = (
            f"{first.key}: the layout of its rows is unknown; it is assumed that no row is reserved "
            "(RoBERTa and BART reserve two). If that is wrong, pass --reserved, or give the folder with its config"
        )
    return Target(changes, (old, length), values, note=note)


def grid_target(found: Found, size: NewSize, key: str | None, config: Mapping[str, Any]) -> Target:
    """Returns the target for a new grid of image patches, given by an image size, a patch size, both, or the grid
    itself. With a patch size alone, the images keep their size. config: the config with the patch size."""
    grid, image_size, patch_size = (
        two_sides(f"--{name.replace('_', '-')} ({name}=...)", getattr(size, name))
        for name in ("grid", "image_size", "patch_size")
    )
    tables = choose(found, key, IMAGE)
    first = next((table for table in tables if table.layout.grid), tables[0])
    tables, patch = [first, *(table for table in tables if table is not first)], first.patch
    sides = [axis.size for axis in first.layout.axes if axis.name in IMAGE_AXES]
    old_grid, (field, *others) = (sides[0], sides[-1]), IMAGE.fields(first)
    values: dict[ConfigField, int | list[int]] = {}
    more: dict[ConfigField, int | list[int]] = {}
    note, sizes, patches = "", None, None
    if patch_size is not None:
        if patch is None or field is None:
            raise ArgumentError(f"the patch size of {first.key} in pixels is unknown, so it cannot be changed")
        more = dict([first.patch_field(patch_size, config)])
        tables, patches, patch = [table.cut(patch, patch_size) for table in tables], (patch, patch_size), patch_size
        image_size, note = image_size or pair(field.value), PATCHES_NOTE
    if grid is None:
        if patch is None or image_size is None:
            unknown = f"the patch size of {first.key} in pixels is unknown"
            if field is not None and field.stated and first.cells:
                unknown = f"{first.key} has {field}={field.value} cells on a side, and no image size changes them"
            raise ArgumentError(f"{unknown}; pass --grid (grid=...)")
        grid = image_size[0] // patch[0], image_size[1] // patch[1]
    if not 1 <= math.prod(grid) <= MOST_POSITIONS:
        raise ArgumentError(f"expected a grid of 1 to {MOST_POSITIONS:,} patches; got {grid[0]} x {grid[1]}")
    if grid == old_grid and patches is None:
        raise ArgumentError(f"{first.key} already holds a grid of {grid[0]} x {grid[1]}; pass another size")
    if patch is not None:
        field_value = None if field is None else field.value
        old_size = pair(field_value) or (old_grid[0] * patch[0], old_grid[1] * patch[1])
        height, width = image_size or (grid[0] * patch[0], grid[1] * patch[1])
        sizes = old_size, (height, width)
        if field is not None:
            values[field] = height if height == width and isinstance(field_value, int) else [height, width]
        unseen = max(height % patch[0], width % patch[1])
        cut_off = f"{height} x {width} pixels are not whole patches: the last {unseen} are not seen" if unseen else ""
        note = ". ".join(filter(None, (cut_off, note)))
    elif first.cells and field is not None:
        named = dict(zip(IMAGE_AXES, grid, strict=True))
        values |= {each: as_value(first, each, named) for each in (field, *others) if each is not None}
    values |= more
    refuse_no_cell(tables, values, "size")
    changes = tuple(table.sized(values) if table.cells and values else on_grid(table, grid) for table in tables)
    old = math.prod(first.layout.shape)
    return Target(changes, (old, changes[0].length), values, sizes, note, patches)


def on_grid(table: PositionTable, grid: Size) -> TableSize:
    return TableSize(table, table.layout.on_grid(*grid), math.prod(grid))


def as_value(table: PositionTable, field: ConfigField, sizes: Mapping[str, int]) -> int | list[int]:
    """Returns the value of a config field, as JSON, that gives the axes of a table the given sizes."""
    pairs = zip(table.layout.axes, table.cells, strict=True)
    own = [(sizes[axis.name], cells) for axis, cells in pairs if cells.field == field]
    own = sorted(own, key=lambda each: each[1].side)
    equal = len({size for size, _ in own}) == 1
    if not equal and own[0][1].area:
        raise ArgumentError(f"{table.key}: {field} gives a square grid; got {' x '.join(map(str, sizes.values()))}")
    values = [cells.value(size) for size, cells in own]
    return values[0] if equal and isinstance(field.value, int) else values


def axis_target(found: Found, option: Option, size: Any, key: str | None) -> Target:
    """Returns the target for a new window size, or for a new number of frames, queries or positions along one axis."""
    sides = two_sides(option.flags, size if option is WINDOW else position_count(option, size)) or (0, 0)
    tables = choose(found, key, option)
    first = tables[0]
    cells = next(cells for cells in first.cells if cells.field in option.fields(first))
    field = cells.field
    if option in (POSITIONS, TEXT):
        value: int | list[int] = cells.value(sides[0])
    else:
        value = sides[0] if sides[0] == sides[1] and isinstance(field.value, int) else list(sides)
    if pair(value) == pair(field.value):
        held = f"{field}={field.value}" if field.stated else f"this {option.what}, {field.value}"
        raise ArgumentError(f"{first.key} already has {held}; pass another {option.what}")
    refuse_no_cell(tables, {field: value}, option.what)
    changes = tuple(table.sized({field: value}) for table in tables)
    return Target(changes, (first.length, changes[0].length), {field: value}, note=QUERIES_NOTE * (option is QUERIES))


def together(found: Found, first: Target, second: Target) -> Target:
    """Merges the targets for a new image size and a new number of frames. Refuses this for a model that was rebuilt."""
    if found.model is not None:
        raise ArgumentError(
            "--frames (frames=...) and another size are two resizes of a model: pass one, then the other"
        )
    values = {**first.values, **second.values}
    changes = {change.table.key: change for change in first.changes}
    for change in second.changes:
        changes[change.table.key] = change.table.sized(values) if change.table.key in changes else change
    one = next(iter(changes.values()))
    return replace(first, changes=tuple(changes.values()), length=(one.table.length, one.length), values=values)


def refuse_no_cell(tables: Sequence[PositionTable], values: Mapping[ConfigField, Any], what: str) -> None:
    """Refuses config values that leave a table without cells, such as the last stage's table for a small image."""
    for table in tables:
        for field in (each.field for each in table.cells if each.field in values):
            if min(each.count(pair(values[field]) or 0) for each in table.cells if each.field == field) < 1:
                raise ArgumentError(f"{table.key}: {field}={values[field]} leaves no cell; pass a larger {what}")


def two_sides(option: str, value: Any) -> Size | None:
    """Converts an integer or a pair of integers to (height, width). Returns None if ``value`` is None."""
    if value is None:
        return None
    height, width = map(operator.index, (value, value) if isinstance(value, Integral) else value)
    if min(height, width) < 1:
        raise ArgumentError(f"{option}: expected (height, width), each at least 1; got {value!r}")
    return height, width


@dataclass(frozen=True)
class Option:
    """A command option for a size. flags: the option and its Python argument. what: the size, in words. kind: the
    positions that the option sizes, in words. axes: names of their axes. window: whether the option sizes windows."""

    flags: str
    what: str
    kind: str
    axes: tuple[str, ...]
    window: bool = False

    def fields(self, table: PositionTable) -> list[ConfigField | None]:
        """Returns the config fields of a table that this option may change, or [None] for a table without a field."""
        if not table.layout.axes:
            return [table.field] if self.axes == TEXT_AXES else []
        named = list(zip(table.layout.axes, table.cells, strict=False))
        if not named and table.layout.grid and self.axes == IMAGE_AXES and not self.window:
            return [table.field]
        fields = [
            cells.field
            for axis, cells in named
            if axis.name in self.axes and bool(WINDOWED.search(cells.field.path[-1])) == self.window
        ]
        return list(dict.fromkeys(fields))


TEXT_AXES = SIDES[:1]  # of limited differences; the positions of a text have no axes
TEXT = Option("--length (length=...)", "length", "positions in a line", TEXT_AXES)
IMAGE = Option("--image-size or --grid (image_size=..., grid=...)", "size", "a grid of patches", IMAGE_AXES)
WINDOW = Option("--window (window=...)", "window", "differences in a window", (*IMAGE_AXES, *TEXT_AXES), window=True)
FRAMES = Option("--frames (frames=...)", "number of frames", "frames of a video or a sound", ("time",))
QUERIES = Option("--queries (queries=...)", "number of queries", "object queries", ("query",))
POSITIONS = Option("--length (length=...)", "length", "positions along one axis", ("coordinate", "number", "distance"))
OPTIONS = (TEXT, IMAGE, WINDOW, FRAMES, QUERIES, POSITIONS)


def choose(found: Found, key: str | None, option: Option) -> list[PositionTable]:
    """Returns the named table (by default the only candidate), and the other tables of the same config field."""
    named = [table for table in found.tables if table.key == key]
    if key is not None and not named:
        raise CheckpointError(f"--table {key}: not a position table of this checkpoint; {listing(found)}")
    tables = [*named, *companions(found, named[0], option)] if named else only_candidates(found, option)
    chosen = []
    for table in tables:
        if not isinstance(table, PositionTable) or (table.doubt and table.found_by != "name"):
            raise CheckpointError(f"{table.key}: not resized: {table.doubt}")
        if not option.fields(table):
            others = flags_for([table])
            remedy = f"pass {' or '.join(others)}" if others else "no option changes its size"
            if option is TEXT and table.layout.grid and table.found_by == "name":
                remedy += "; if they are in a line, say so with --reserved (reserved=...)"
            raise CheckpointError(f"{table.key}: its positions are not {option.kind}; {remedy}")
        chosen.append(table)
    return chosen


NOT_UNDERSTOOD = "no table of {} is understood well enough to be resized"


def only_candidates(found: Found, option: Option) -> list[FoundTable]:
    if found.no_need:
        raise CheckpointError(f"nothing to resize: {found.no_need}")
    candidates = [table for table in found.understood if option.fields(table) and table.found_by != "name"]
    learned = [table for table in candidates if table.kind == "learned"]
    fields = list(dict.fromkeys(tuple(option.fields(table)) for table in learned or candidates))
    texts = [each for each in fields if each[0] and each[0].path[-1] in TEXT_LENGTH]
    if len(fields) > 1 and len(texts) == 1:
        fields = [texts[0]]
    if found.tables and all(table.fixed for table in found.tables):
        more = f" (and {len(found.tables) - 1} more like it)" if len(found.tables) > 1 else ""
        raise CheckpointError(f"nothing to resize: {found.tables[0].key}{more}: {found.tables[0].doubt}")
    named = [table for table in found.understood if option.fields(table)]
    others_are_known = len(found.understood) == len(found.tables)
    if not fields and len(named) == 1 and others_are_known and named[0].field is None:  # a file without a config
        return [*named]
    if not fields:
        others = flags_for(found.understood)
        remedy = f". To resize these, pass {', or '.join(others)}" if others else ""
        if named := named or [table for table in found.understood if flags_for([table]) == [option.flags]]:
            remedy = f". Add one of these to the command (in Python, table=...): {tables_to_name(named)}"
        understood = found.tables and not any(table.doubt for table in found.tables)
        none = f"this model has no table of {option.kind}" if understood else NOT_UNDERSTOOD.format(option.kind)
        raise CheckpointError(f"{none}; {listing(found)}{remedy}")
    if len(fields) > 1:
        raise CheckpointError(
            "several tables could be meant; add one of these to the command (in Python, table=...): "
            f"{tables_to_name(candidates)}"
        )
    return [table for table in candidates if set(fields[0]) & set(option.fields(table))]


def flags_for(tables: Sequence[PositionTable]) -> list[str]:
    return list(dict.fromkeys(each.flags for table in tables for each in OPTIONS if each.fields(table)))


def tables_to_name(tables: Sequence[FoundTable]) -> str:
    """Returns a ``--table`` option for each table, to paste into a command."""
    return ", ".join(f"--table {shlex.quote(table.key)}" for table in tables)


def companions(found: Found, table: FoundTable, option: Option | None = None) -> list[FoundTable]:
    """Returns the other tables that share a config field with this table. With an option, only its own field counts. In
    one file, another table in a line may have this length by chance."""
    fields = set() if option is TEXT and table.found_by == "settings" else fields_of(table, option)
    return [other for other in found.tables if fields & fields_of(other) and other.key != table.key]


def fields_of(table: FoundTable, option: Option | None = None) -> set[ConfigField]:
    fields: Sequence[ConfigField | None] = (table.field,)
    if isinstance(table, PositionTable):
        fields = (option.fields(table) if option else ()) or table.fields
    return set(filter(None, fields))


def listing(found: Found) -> str:
    if not found.tables:
        return f"no position table was found: {why_none(found)}"
    alike: dict[str, list[str]] = {}  # one reason often holds for every layer
    for table in found.tables:
        alike.setdefault(table.doubt, []).append(table.key)
    listed = []
    for doubt, keys in list(alike.items())[:MOST_LISTED]:
        more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
        listed.append(f"{', '.join(keys[:MOST_LISTED])}{more}{f' ({doubt})' if doubt else ''}")
    return "found " + "; ".join(listed)


def why_none(found: Found) -> str:
    if found.no_need:
        return found.no_need
    if found.blocked:
        return "; ".join(dict.fromkeys(found.blocked.values()))
    if found.model is None:
        return "no tensor has the name and shape of a position table"
    return str(source_of(found.config).why_no_table(found.model))
