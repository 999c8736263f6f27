"""A file that a project's own script saved: its tables, and what changes with them beside the weights.

Nothing in such a file says which model it holds. The tables are found by name and shape. The settings beside the
weights (``model_args["block_size"]``, ``args.max_positions``) confirm their layouts, and change with them, as do
averages of the weights and the state of the optimizer.
"""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.find import checked, find_tables
from posembed.checkpoints.layouts import A_GUESS
from posembed.checkpoints.native.by_shape import (
    AXES,
    kind_of,
    name_of,
    on_stated_image,
    sides,
    tables_by_shape,
    with_cells,
)
from posembed.checkpoints.plan import Edit, TableChange
from posembed.checkpoints.position_tables import ConfigField, Found, FoundTable, PositionTable, Tensors, pair
from posembed.checkpoints.responses import LENGTH_LIKE, OTHER_SIZES
from posembed.checkpoints.settings import Setting
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, WeightFile
from posembed.modelfiles.safetensors import values_of
from posembed.modelfiles.training_files import DROPPED, Place, Tree, joined, nodes, unwrapped
from posembed.tables.layout import IMAGE_AXES, Axis, TableLayout
from posembed.tables.modules import is_table_name

NO_LENGTH = re.compile(r"pred|queue|dataset|silen|challen|compos|purpos|depos|dispos|expos|label|valid")
"""Matches settings whose names hold "len" or "pos", but which say nothing about a table."""
PADDING = re.compile(r"^pad(ding)?_(token_id|idx|id|index)$")
MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "sum"}
"""The names of means of gradients in PyTorch's optimizers. Zero is where they begin."""
LINES = ("", "num_frames", "position_size")
"""The kinds of settings that may be the length of a table whose rows lie in a line."""
FEW_NUMBERS = 3
STAYS = "--keep (keep=...) leaves it as it is"
UNKNOWN, ASKED_FOR = "it is not known which of its values belong to the table", "it was asked for"
OF_PATCHES = "the weights of its patches have other shapes than its moments"
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


@dataclass(frozen=True)
class Beside:
    """What changes beside the weights. values: new values by place. numbers: those among the tensors of the model, by
    key, for a file of tensors only. dropped: why each entry is left out. unchanged:
    tensors that look like the table, such as a second copy of it without its name, but stay as they are."""

    settings: tuple[Setting, ...] = ()
    copies: Mapping[str, Edit] = field(default_factory=dict)
    values: Mapping[Place, Any] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()


def sizes_in(file: WeightFile) -> dict[Place, Any]:
    """Returns the settings and the tensors of a few numbers that may be a length or the side of an image, by place."""
    few = (((key,), tensor) for key, tensor in file.tensors.items() if math.prod(tensor.shape) <= FEW_NUMBERS)
    held = ((place, values_of(tensor)) for place, tensor in few) if file.tree is None else nodes(file.tree.root)
    return {place: value for place, value in held if is_size(place, value)}


def is_size(place: Place, value: Any) -> bool:
    """Whether a value may be a length, or a size (height, width), by its name and its type."""
    name = name_of(place)
    if OTHER_SIZES.search(name) or NO_LENGTH.search(name):
        return False
    return bool(LENGTH_LIKE.search(name) or kind_of(place)) and sides(value) is not None


def plain(value: Any) -> Any:
    """Returns a number of PyTorch or numpy as one of Python, also in a size."""
    if isinstance(value, Tensor) and value.ndim and sides(value):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    is_number = (isinstance(value, Tensor) and not value.ndim) or isinstance(value, Integral)
    return operator.index(value) if is_number and not isinstance(value, bool) and sides(value) else value


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


def changes_beside(
    file: WeightFile, edit: Edit, plan: Callable[[Tensors], Edit], optimizer: str | None, keep: Sequence[str] = ()
) -> Beside:
    """Returns what changes beside the weights. plan: the same resize of a copy of the weights, given its tensors.
    optimizer: "keep" or "drop"; None for a new file of tensors only. keep: settings that stay."""
    tree, values, settings = file.tree, dict[Place, Any](), []
    keys: Mapping[Place, str] = {(key,): key for key in file.tensors}
    if tree is not None:
        keys = {place: key for key, place in tree.places(tree.model).items()}
    sizes = {
        joined(place): (place, value, new)
        for place, value, new in changed_sizes(file, edit)
        if optimizer is not None or place in keys
    }
    if unknown := [name for name in keep if name not in sizes]:
        would = ", ".join(sizes) or "none"
        raise ArgumentError(f"--keep (keep=...): {unknown[0]} is no setting that changes; these do: {would}")
    for place, value, new in (size for name, size in sizes.items() if name not in keep):
        values[place] = renewed(value, new, f"{file.path}: {joined(place)}")
        settings.append(Setting(file.path.name, tuple(map(str, place)), plain(value), plain(values[place])))
    if tree is None or optimizer is None:
        return Beside(tuple(settings), numbers={keys[place]: new for place, new in values.items()})
    copies = {}
    of_model = {unwrapped(key): key for key in tree.tensors(tree.model)}
    for copy in tree.copies:
        held = tree.tensors(copy)
        names = {of_model.get(unwrapped(key), key): key for key in held}  # such as wpe.weight: module.wpe.weight
        tensors = {name: held[key] for name, key in names.items()}
        if not any(change.key in tensors for change in edit.tables):
            continue
        try:
            copies[joined(copy)] = of_copy = plan(tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{joined(copy)}: a second copy of the weights, not resized: {error}") from error
        values |= tree.changes(copy, {names[key]: new for key, new in of_copy.tensors.items()})
    dropped = {}
    for place, state in tree.optimizers.items():
        kept, why = optimizer == "keep", UNKNOWN if edit.target.patch_size is None else OF_PATCHES
        moments = changed_moments(state, edit, tree) if kept and why == UNKNOWN else None
        if moments is not None:
            values |= {(*place, *inside): moment for inside, moment in moments.items()}
            continue
        entry = tree.entry_of(place)
        dropped[joined(entry)] = why if kept else ASKED_FOR
        values = {each: value for each, value in values.items() if each[: len(entry)] != entry} | {entry: DROPPED}
    unchanged = tuple(
        joined(place) for place in like_tables(tree, edit) if all(place[: len(each)] != each for each in values)
    )
    return Beside(tuple(settings), copies, values, dropped=dropped, unchanged=unchanged)


def like_tables(tree: Tree, edit: Edit) -> Iterator[Place]:
    """Yields tensors outside weights and optimizers with a table's shape, or named like one and with as many rows."""
    shapes = {tuple(change.before.shape) for change in edit.tables}
    for place, value in tree.beside.items():
        if isinstance(value, Tensor):
            shape, named = tuple(value.shape), is_table_name(joined(place))
            if shape in shapes or (named and any(shape[:-1] == each[:-1] for each in shapes)):
                yield place


def changed_sizes(file: WeightFile, edit: Edit) -> Iterator[tuple[Place, Any, tuple[int, ...]]]:
    """Yields the settings with an old size: their places, their values and their new sizes."""
    lengths: dict[int, int] = {}
    for change in edit.target.changes:
        if not change.layout.axes:  # the number of cells of a grid is the length of no text
            lengths |= {change.table.rows: change.layout.rows(change.length), change.table.length: change.length}
    changed: dict[tuple[str, Any], tuple[int, ...] | None] = {}  # new sizes by the kind and the old size
    for of, value in edit.target.values.items():
        if (kind := kind_of(of.path)) and pair(value) != pair(of.value):
            changed[kind, pair(of.value)] = pair(value)
    for change in edit.target.changes:
        old, new = change.table.layout.axes, change.layout.axes
        if tuple(axis.name for axis in old) in (AXES, IMAGE_AXES) and not any(axis.relative for axis in old):
            before, after = (tuple(int(axis.size) for axis in axes) for axes in (old, new))
            follow: dict[tuple[str, Any], tuple[int, ...] | None]
            follow = {(kind, before[at:]): after[at:] for kind in ("grid_size", "position_size") for at in (0, -2)}
            follow["num_patches", pair(math.prod(before))] = pair(math.prod(after))
            changed |= {old: new for old, new in follow.items() if old[1] != new}
    for place, value in sizes_in(file).items():
        kind, number = kind_of(place), plain(value)
        whole = tuple(number) if isinstance(number, list) else None
        size = changed.get((kind, whole)) or changed.get((kind, sides(value)))
        if size is None and kind in LINES and type(number) is int:
            size = pair(lengths.get(number))
        if size:
            yield place, value, size


def renewed(value: Any, new: tuple[int, ...], name: str) -> Any:
    """Returns a new size as its setting holds it. Raises CheckpointError if the setting cannot."""
    one = isinstance(plain(value), int)
    if one and len(set(new)) > 1:
        raise CheckpointError(f"{name} is one number, so the new size must be square; {STAYS}")
    made = None
    with suppress(OverflowError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy before 2 warns and keeps the last bits
        made = like(value, new[0] if one else new)
    if sides(made) != new[-2:]:
        raise CheckpointError(f"{name} cannot hold {max(new)} in its {value.dtype}; save it in a wider one, or {STAYS}")
    return made


def like(value: Any, new: Any) -> Any:
    """Returns a new size as its setting holds it: a number of the same type, or (channels, height, width)."""
    if isinstance(value, Tensor):
        return torch.tensor(like(value.tolist(), new), dtype=value.dtype)
    if isinstance(value, list | tuple):
        return type(value)((*value[: -len(new)], *map(like, value[-len(new) :], new)))
    return type(value)(new)


def changed_moments(state: Mapping[Any, Any], edit: Edit, tree: Tree) -> dict[Place, Tensor] | None:
    """Returns the moments that an optimizer keeps of the tables, in the new sizes, by place in its state: rows that
    stay the same keep theirs, and all others begin with zeros. None if it is not known which are the tables'.

    A state dict of torch.distributed.checkpoint has the parameters' names. Others number them in an order that only the
    script knows, so a table is known by its shape.
    """
    found: dict[Place, Tensor] = {}
    of_model = [tuple(tensor.shape) for tensor in distinct(tree.tensors(tree.model))]
    known = {tuple(each.shape) for each in tree.beside.values() if isinstance(each, Tensor)}.union(of_model)
    keys = {unwrapped(key) for key in tree.places(tree.model) if not key.isdigit()}
    by_name = all(unwrapped(str(number)) in keys for number in state["state"])
    plain = by_name or all(shape in known and name in MOMENTS for _, name, shape in moments_of(state))
    for change in edit.tables:
        shape, wanted = tuple(change.before.shape), unwrapped(change.key)
        alike = {
            number
            for number, _, other in moments_of(state)
            if (unwrapped(number) == wanted if by_name else other == shape)
        }
        others = (each for other in tree.optimizers.values() if other is not state for each in moments_of(other))
        if not alike and (plain or any(other == shape for *_, other in others)):
            continue  # it optimizes other parameters
        names = {name: other for number, name, other in moments_of(state) if number in alike}
        if (
            len(alike) != 1
            or not (by_name or of_model.count(shape) == 1)
            or not names.keys() <= MOMENTS
            or {*names.values()} != {shape}
        ):
            return None
        (number,) = alike
        moments = {name: state["state"][number][name] for name in names}
        if not all(moment.is_floating_point() for moment in moments.values()):
            return None
        found |= {("state", number, name): resized_moment(moment, change, edit) for name, moment in moments.items()}
    return found


def moments_of(state: Mapping[Any, Any]) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    """Yields the number of a parameter, the name and the shape for each tensor that an optimizer keeps."""
    for number, of_one in state["state"].items():
        for name, each in of_one.items():
            if isinstance(each, Tensor) and each.ndim:
                yield number, name, tuple(each.shape)


def distinct(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns tensors without those that share the memory of another, such as tied weights."""
    return list({(each.data_ptr(), each.shape): each for each in tensors.values()}.values())


def resized_moment(moment: Tensor, change: TableChange, edit: Edit) -> Tensor:
    size = next(each for each in edit.target.changes if each.table.key == change.key)
    old = size.table.layout.rows_in(moment)
    new = old.new_zeros(size.layout.rows(size.length), old.shape[-1])
    kept = change.kept if change.leading else 0
    new[:kept] = old[:kept]
    return size.layout.stored(new, like=moment)
