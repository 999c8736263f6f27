"""Tables of models that transformers does not build: known by a row of ``tables/families.py``, or guessed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from posembed.checkpoints.found import Config, ConfigField, FoundTable, PositionTable, Size, Tensors, section
from posembed.checkpoints.layouts import pair
from posembed.checkpoints.rebuild import length_like_fields
from posembed.modelfiles.safetensors import dtype_name
from posembed.tables.families import FieldPath, family_of
from posembed.tables.layout import TableLayout

NAMED_LIKE_A_TABLE = re.compile(r"pos(ition)?s?(al)?_?(emb|enc)|embed_positions|\bwpe\b")
NOT_A_TABLE = re.compile(r"rel(ative)?_|_rel|bias|conv|kernel|[xyhw]_position|2d|proj|norm|gate|scale")
IN_IMAGE_MODEL = re.compile(r"vis(ion|ual)|image|patch")
A_GUESS = "found by its name and shape alone; to resize it, name it with --table (table=...)"


def known_tables(config: Config, tensors: Tensors) -> Iterator[FoundTable]:
    """Yields the tables that the row of this model's family names, as far as its config says their length."""
    for known in family_of(config).tables:
        if known.key not in tensors:
            continue
        value = next(filter(None, (at(config, path) for path in known.fields)), known.default)
        is_grid = known.patch or known.kernel
        kernel = list(tensors[known.kernel].shape) if known.kernel in tensors else []
        size, patch = pair(value), pair(at(config, known.patch) if known.patch else kernel[2:])
        if is_grid and size is not None and patch is not None:
            field = ConfigField(known.fields[0], value if isinstance(value, int) else size)
            table = replace(found_tensor(tensors, known.key), found_by="family", field=field)
            grid = size[0] // patch[0], size[1] // patch[1]
            layout = known.layout or TableLayout(prefix=min(max(table.rows - math.prod(grid), 0), 2))
            yield judged(table, layout.on_grid(*grid), math.prod(grid), patch)
        elif not is_grid and known.layout is not None and isinstance(value, int):
            field = ConfigField(known.fields[0], value)
            table = replace(found_tensor(tensors, known.key), found_by="family", field=field)
            yield judged(table, known.layout, value)


def at(config: Config, path: FieldPath) -> Any:
    """Returns the value of a field; of an input size (channels, height, width) the sides, as one if they agree."""
    value = section(config, path[:-1]).get(path[-1])
    if isinstance(value, list) and len(value) == 3:
        value = value[1] if value[1] == value[2] else value[1:]
    return value


def judged(table: FoundTable, layout: TableLayout, length: int, patch: Size | None = None) -> FoundTable:
    """Returns the table with its family's layout, or with a doubt if its shape does not fit.

    The config may be right even then: not every model of timm has a row for each patch of its first convolution.
    """
    rows = layout.front + length + layout.tail
    if table.rows == rows and len(table.shape) <= 3 and all(size == 1 for size in table.shape[:-2]):
        return table.read_by(layout, patch=patch)
    given = f"{table.field}={table.field.value}" if table.field else ""
    patches = "" if layout.grid is None else f" ({layout.grid[0]} x {layout.grid[1]} patches, and their tokens)"
    doubt = f"its shape {table.shape} is not the one row a position of {given}{patches}"
    return replace(table, found_by="name").doubted(doubt)


def guessed_tables(config: Config, tensors: Tensors) -> Iterator[FoundTable]:
    """Yields tables by shape and name alone. Each says in its doubt that it is a guess."""
    for key, tensor in tensors.items():
        lead, shape = tensor.shape[:-2], tensor.shape[-2:]
        if not is_table_name(key) or len(shape) != 2 or any(size != 1 for size in lead) or len(lead) > 1:
            continue
        if min(shape) < 2 or not dtype_name(tensor).startswith(("F", "BF")):
            continue
        table = found_tensor(tensors, key)
        yield guessed_grid(table) if lead or IN_IMAGE_MODEL.search(key) else guessed_line(table, config)


def guessed_line(table: FoundTable, config: Config) -> PositionTable:
    layout = family_of(config).line_in(config)
    lengths = {table.rows, table.rows - layout.front}
    fields = [each for each in length_like_fields(config) if each.value in lengths]
    return replace(table, field=fields[0] if len(fields) == 1 else None).read_by(layout, doubt=A_GUESS)


def guessed_grid(table: FoundTable) -> FoundTable:
    for prefix in (0, 1, 2):
        side = math.isqrt(max(table.rows - prefix, 0))
        if side > 1 and side * side == table.rows - prefix:
            return table.read_by(TableLayout(prefix=prefix, grid=(side, side)), doubt=A_GUESS)
    return table.doubted("nothing says how its rows lie as a grid, and they are not a square")


def is_table_name(key: str) -> bool:
    return bool(NAMED_LIKE_A_TABLE.search(key)) and not NOT_A_TABLE.search(key)


def found_tensor(tensors: Tensors, key: str) -> FoundTable:
    return FoundTable(key=key, shape=tuple(tensors[key].shape), dtype=dtype_name(tensors[key]))
