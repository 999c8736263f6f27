"""The tables of a file that a project's own script saved.

Nothing in such a file says which model it holds. The tables are found by name and shape. The settings beside the
weights (``model_args["block_size"]``, ``args.max_positions``) confirm their layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from posembed.checkpoints.find import checked, find_tables
from posembed.checkpoints.layouts import A_GUESS
from posembed.checkpoints.native.by_shape import on_stated_image, tables_by_shape, with_cells
from posembed.checkpoints.native.sizes import AXES, LINES, kind_of, name_of, plain, sizes_in
from posembed.checkpoints.position_tables import ConfigField, Found, FoundTable, PositionTable, Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, WeightFile
from posembed.modelfiles.training_files import Place, nodes
from posembed.tables.layout import Axis, TableLayout
from posembed.tables.modules import is_table_name

PADDING = re.compile(r"^pad(ding)?_(token_id|idx|id|index)$")
AFTER_PADDING = 2
"""Reserved rows of fairseq's models, whose positions are counted from the padding token, 1."""
TWO_READINGS = (
    "its {rows} rows may be as many positions, or fewer after {after} reserved rows, as in RoBERTa; pass --reserved 0 "
    "or --reserved {after} (reserved=...)"
)


@dataclass(frozen=True)
class Rows:
    """What a user says about the rows of a table: how many are reserved before and after the positions, and the grid
    of those between them. None is not known."""

    reserved: int | None = None
    tail: int | None = None
    old_grid: tuple[int, ...] | None = None


AS_FOUND = Rows()


def tables_in(file: WeightFile, tensors: Tensors, rows: Rows) -> Found:
    """Returns the tables of a file, with the layouts that the user gives or the settings confirm."""
    found, sizes, everything = find_tables(None, tensors), sizes_in(file), nodes(file.tree.root if file.tree else {})
    pads = any(type(value) is int and value == 1 and PADDING.search(name_of(place)) for place, value in everything)
    by_key = {table.key: table for table in found.tables}
    by_key |= {table.key: table for table in tables_by_shape(tensors, rows.old_grid)}
    by_key = {key: on_stated_image(table, sizes, tensors) for key, table in by_key.items()}
    if rows.old_grid is not None:
        by_key |= on_given_grid(by_key, rows)
    tables = [checked(as_given(by_key[key], rows), found, "", tensors) for key in tensors if key in by_key]
    along = [table for table in tables if isinstance(table, PositionTable) and table.layout.axes]
    return replace(
        found,
        tables=tuple(
            with_cells(table, along, sizes, tensors)
            if isinstance(table, PositionTable) and table.layout.axes
            else as_set(table, sizes, pads=pads, given=rows != AS_FOUND)
            for table in tables
        ),
    )


def tables_of(checkpoint: Checkpoint, *, rebuild: bool = True) -> Found:
    """Returns the tables of a checkpoint: those of its config, or in one file, those that its settings confirm."""
    if checkpoint.folder is None:
        return tables_in(checkpoint.weights[0], checkpoint.tensors, AS_FOUND)
    return find_tables(checkpoint.config, checkpoint.tensors, rebuild=rebuild)


def as_set(table: FoundTable, sizes: Mapping[Place, Any], *, pads: bool, given: bool) -> FoundTable:
    """Returns a table of a line with the setting that gives its length, if there is one. pads: whether a setting says
    that token 1 is padding, as in RoBERTa, whose configs count the rows. given: whether the user gives its layout."""
    if not isinstance(table, PositionTable):
        return table
    whole = {place: plain(value) for place, value in sizes.items() if kind_of(place) in LINES}
    lengths = {value: place for place, value in reversed(whole.items()) if type(value) is int}
    rows, starts = table.rows - table.layout.tail, (table.layout.front,) if given else (0, AFTER_PADDING)
    says = {reserved: rows - reserved for reserved in starts if rows - reserved in lengths}
    if not given and (len(says) > 1 or (0 in says and pads)):
        return replace(table, found_by="settings", doubt=TWO_READINGS.format(rows=table.rows, after=AFTER_PADDING))
    for reserved, length in says.items():
        layout = table.layout if given or not reserved else TableLayout.roberta()
        field = ConfigField(tuple(map(str, lengths[length])), length)
        return replace(table, layout=layout, field=field, found_by="settings", doubt="")
    return table


def in_rows(table: FoundTable) -> bool:
    """Whether a user may say how the rows of a table are laid out."""
    layout = table.layout if isinstance(table, PositionTable) else TableLayout()
    return is_table_name(table.key) and not layout.dims and len(layout.axes) != 1


def as_given(table: FoundTable, rows: Rows) -> FoundTable:
    """Returns a table of a line with the reserved rows that the user gives."""
    lies_in_line = not (isinstance(table, PositionTable) and table.layout.axes)
    if rows == AS_FOUND or rows.old_grid is not None or not in_rows(table) or not lies_in_line:
        return table
    layout = TableLayout(reserved=rows.reserved or 0, tail=rows.tail or 0)
    if layout.rows(1) > table.rows:
        raise CheckpointError(f"{table.key}: has {table.rows} rows, fewer than are reserved")
    return table.read_by(layout, doubt=table.doubt)


def on_given_grid(tables: Mapping[str, FoundTable], rows: Rows) -> dict[str, FoundTable]:
    """Returns the tables on the grid that the user gives: those that it fits with the fewest rows before it. Others,
    such as that of the text in CLIP, stay as they are."""
    grid, tail = rows.old_grid or (), rows.tail or 0
    fronts = {key: table.rows - math.prod(grid) - tail for key, table in tables.items() if in_rows(table)}
    most = math.prod(grid) if rows.reserved is None else rows.reserved
    fits = [front for front in fronts.values() if (rows.reserved or 0) <= front <= most]
    if fronts and not fits:
        key, front = next(iter(fronts.items()))
        front = front if rows.reserved is None else rows.reserved
        wrong = f"{front} reserved rows, a grid of {' x '.join(map(str, grid))} and {tail} rows after it"
        raise CheckpointError(f"{key}: has {tables[key].rows} rows, not {wrong} (--reserved, --old-grid, --tail)")
    layout = TableLayout(prefix=min(fits, default=0), axes=tuple(map(Axis, AXES[-len(grid) :], grid)), tail=tail)
    fitting = (tables[key] for key, front in fronts.items() if front == layout.prefix)
    return {table.key: table.read_by(layout, doubt=table.doubt or A_GUESS) for table in fitting}
