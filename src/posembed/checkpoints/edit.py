"""Plans how a model's config and tensors change for a new length. Nothing is written.

The tables, the tensors that depend on the same config field and the config change together or not at all. If
transformers supports the model, it is rebuilt from the new config, and the plan is refused if its shapes differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import FRAMES, POSITIONS, WINDOW, Target, axis_target, grid_target, line_target
from posembed.checkpoints.find import UNKNOWN_FORMULA, aliases, find_tables, is_index, key_in_files
from posembed.checkpoints.found import Config, ConfigField, Found, PositionTable, Size, TableSize, Tensors
from posembed.checkpoints.patterns import buffers_by_length, recomputed, resized_buffer
from posembed.checkpoints.rebuild import build_on_meta, config_object, shapes_of, size_fields, with_field
from posembed.checkpoints.runs import SAME, own_reading, refused
from posembed.checkpoints.trial import NotTried, is_plain, refuse_misread
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.safetensors import AnyTensor, values_of
from posembed.tables.resize import changed_axes, leading_rows_kept, resize_table
from posembed.tables.resize_methods import TEXT, kernels_of

BOTH = frozenset({"encoder", "decoder"})
SAME_PATTERN = "the same pattern, longer or shorter"
RECOMPUTED = "removed, because the model recomputes it"


@dataclass(frozen=True, eq=False)
class TensorChange:
    """A tensor before and after a resize. after: None if it is removed. how: the method in words."""

    key: str
    before: Tensor
    after: Tensor | None
    how: str


@dataclass(frozen=True, eq=False)
class TableChange(TensorChange):
    """A table before and after a resize. kept: the number of leading rows that stay the same, bit for bit."""

    after: Tensor
    kept: int


@dataclass(frozen=True, eq=False)
class Edit:
    """All changes in a model for a new length.

    target: the tables and their sizes. tables: the changes of their rows. others: the changes of tensors that depend on
    their length (ids, masks). config: the complete new config; None without a config.
    sides: "encoder", "decoder" or both: the sides of the model that the tables belong to. It is always both if only one
        side takes text.
    repeated: config fields that repeat the field of the tables, and change with it.
    checks: what runs of small copies of the model showed, in sentences.
    """

    target: Target
    tables: tuple[TableChange, ...]
    others: tuple[TensorChange, ...]
    config: dict[str, Any] | None
    sides: frozenset[str] = BOTH
    repeated: tuple[ConfigField, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {change.key: change.after for change in (*self.tables, *self.others)}


def plan_edit(
    config: Config | None,
    tensors: Tensors,
    *,
    length: int | None = None,
    image_size: Size | int | None = None,
    grid: Size | None = None,
    window: Size | int | None = None,
    frames: int | None = None,
    method: str | None = None,
    table: str | None = None,
    found: Found | None = None,
) -> Edit:
    """Plans the changes for a new usable length, image size or grid.

    The sizes, the method, the table and the errors are the same as for ``resize_checkpoint``. found: the tables, if the
    caller has already found them.
    """
    if sum(size is not None for size in (length, image_size, grid, window, frames)) != 1:
        raise ArgumentError(
            "expected one of --length, --image-size, --grid, --window and --frames (length=, image_size=, grid=, "
            "window=, frames=)"
        )
    if not isinstance(method, str | None):
        raise ArgumentError(f"--method (method=...): expected the name of a method; got {method!r}")
    found = found or find_tables(config, tensors)
    target = target_of(found, table, length=length, image_size=image_size, grid=grid, window=window, frames=frames)
    refuse_second_copies(tensors, found, target)
    new_config = None if config is None else changed_config(config, found, target)
    tables = tuple(changed_table(tensors, change, method) for change in target.changes)
    if found.model is None or new_config is None:
        return Edit(target, tables, tuple(buffers_without_model(tensors, found, target)), new_config)
    try:
        new_model = build_on_meta(config_object(new_config))
    except CheckpointError as error:
        if not isinstance(target.value, list):
            raise
        pixels = "x".join(map(str, target.value))
        unbuilt = f"its model cannot be built for {pixels} pixels; it may take only square images"
        raise CheckpointError(f"{target.table.key}: {unbuilt} ({error})") from error
    buffers = tuple(changed_buffers(tensors, found, target, new_model, tables))
    refuse_misread(found.model, new_model, target)
    checks = tuple(proofs(found.model, new_model, target, method))
    sizes = {size for change in target.changes for size in (change.table.rows, change.table.length)}
    stale = [key for key in found.stale if tensors[key].shape[-1] in sizes or is_index(key)]
    removed = (TensorChange(key, values_of(tensors[key]), None, RECOMPUTED) for key in stale)
    sides = BOTH
    if {"input_ids", "decoder_input_ids"} <= set(signature(new_model.forward).parameters):
        paths = (change.table.parameter.split(".") for change in target.changes)
        sides = frozenset().union(*(BOTH.intersection(path) or BOTH for path in paths))
    return Edit(target, tables, (*buffers, *removed), new_config, sides, tuple(repeated(found, target)), checks)


def proofs(old_model: nn.Module, new_model: nn.Module, target: Target, method: str | None) -> Iterator[str]:
    """Refuses tables along axes that a run of small copies contradicts, or that no run could check. Yields what the
    runs showed."""
    changes = [change for change in target.changes if not is_plain(change)]
    if changes:
        try:
            problem = refused(old_model, new_model, target, changes)
        except NotTried as reason:
            problem = f"no small copy of its model could be run to check which rows it reads ({reason})"
        if problem:
            raise CheckpointError(f"{changes[0].table.key}: not resized: {problem}")
        yield "Small copies of the model, one at the old and one at the new size, run and read every row of the table."
    if (own := own_reading(old_model, new_model, target, method)) is not None:
        same = "the same answers as" if own.apart < SAME else f"answers that differ by {100 * own.apart:.2g}% from"
        remedy = f"; --method {own.same} (method={own.same!r}) gives the same answers" if own.same else ""
        yield (
            f"On a small copy with a smooth random table, the resized table gives {same} the old table at the new size, "
            f"which the model interpolates itself{remedy}."
        )


def target_of(
    found: Found,
    table: str | None,
    *,
    length: int | None,
    image_size: Size | int | None,
    grid: Size | None,
    window: Size | int | None,
    frames: int | None,
) -> Target:
    """Returns the tables and the new sizes that one of these sizes means."""
    if length is not None:
        along = next((each for each in found.understood if each.key == table and POSITIONS.fields(each)), None)
        return line_target(found, length, table) if along is None else axis_target(found, POSITIONS, length, table)
    if window is not None or frames is not None:
        option, size = (FRAMES, frames) if window is None else (WINDOW, window)
        return axis_target(found, option, size, table)
    image: Any = (image_size, image_size) if isinstance(image_size, Integral) else image_size
    return grid_target(found, image_size=image, grid=grid, key=table)


def refuse_second_copies(tensors: Tensors, found: Found, target: Target) -> None:
    """Refuses a table that the files also store under another key, where it would stay unchanged."""
    changed = {change.table.key for change in target.changes}
    for key in changed:
        address = address_of(tensors[key])
        for other in tensors.keys() - changed:
            if other in aliases(key, found.model) or (address and address == address_of(tensors[other])):
                raise CheckpointError(f"{key}: the files store this table a second time as {other}; save only one copy")


def address_of(tensor: AnyTensor) -> tuple[int, torch.Size] | None:
    """Returns a tensor's address in memory and its shape; None if it is in a file, on meta or empty."""
    return (tensor.data_ptr(), tensor.shape) if isinstance(tensor, Tensor) and tensor.data_ptr() else None


def changed_table(tensors: Tensors, change: TableSize, method: str | None) -> TableChange:
    table, layout, length = change.table, change.layout, change.length
    old = values_of(tensors[table.key])
    if table.kind == "sinusoidal":
        if method is not None:
            raise ArgumentError(f"{table.key} is a fixed sinusoid, recomputed by its formula; leave --method out")
        sinusoid = recomputed(table.values(tensors), table.layout, layout, length)
        if sinusoid is None:
            raise CheckpointError(f"{table.key}: not resized: {UNKNOWN_FORMULA}")
        new = layout.stored(sinusoid[0], like=old)
        return TableChange(table.key, old, new, sinusoid[1], kept=kept(table, change, old, new))
    sizes = {axis.name: axis.size for axis in layout.axes}
    try:
        new = resize_table(
            old, length=None if sizes else length, sizes=sizes or None, method=method, layout=table.layout
        )
    except ArgumentError as error:
        raise ArgumentError(f"{table.key}: {error}") from error
    before, after = (int((~rows.float().isfinite()).any(-1).sum()) for rows in (old, new))
    if after > before:  # rows that already were may stay; ``posembed inspect`` reports them
        damage = f"{before} of its rows hold NaN or infinity, and {after} would after the resize"
        raise CheckpointError(f"{table.key}: {damage}; repair the table, or pass another --method (method=...)")
    # By default, a shorter line is truncated.
    default = (
        kernels_of(changed_axes(table.layout, layout)).default
        if sizes
        else "truncate"
        if length < table.length
        else TEXT.default
    )
    return TableChange(table.key, old, new, method or default, kept=kept(table, change, old, new))


def kept(table: PositionTable, change: TableSize, old: Tensor, new: Tensor) -> int:
    before, after = table.layout.rows_in(old), change.layout.rows_in(new)
    return leading_rows_kept(before, after) if before.numel() else 0


def changed_config(config: Config, found: Found, target: Target) -> dict[str, Any]:
    if target.field is None or target.value is None:
        unknown = f"config.json: no single field gives the {target.table.rows} rows of {target.table.key}"
        raise CheckpointError(f"{unknown}; pass the weights file without its config, and change the config yourself")
    changed = with_field(config, found.config, target.field.path, target.value)
    for field in repeated(found, target):
        changed = with_field(changed, found.config, field.path, target.value)
    return changed


def repeated(found: Found, target: Target) -> list[ConfigField]:
    """Returns the fields that repeat the image size in other sections of the config: no tensor depends on them."""
    field = target.field
    if target.image_size is None or field is None or found.config is None:
        return []
    return [
        other
        for other in size_fields(found.config.to_dict())
        if other.path[-1] == field.path[-1]
        and other.value == field.value
        and other.path != field.path
        and other not in found.responding
    ]


def changed_buffers(
    tensors: Tensors, found: Found, target: Target, new_model: nn.Module, tables: tuple[TableChange, ...]
) -> Iterator[TensorChange]:
    """Yields the buffers that depend on the tables' config field, in the shapes that they have in the rebuilt model.
    Raises CheckpointError if the tables have other shapes in that model than planned."""
    assert found.model is not None
    old_shapes = shapes_of(found.model)
    changed = {
        key: shape
        for name, shape in shapes_of(new_model).items()
        if shape != old_shapes.get(name) and (key := key_in_files(name, tensors, found.keys)) is not None
    }
    for table in tables:
        planned = tuple(table.after.shape)
        if (shape := changed.pop(table.key, tuple(table.before.shape))) != planned:
            built = f"the model with {target.field}={target.value} has {shape}"
            raise CheckpointError(f"{table.key}: not resized to {planned}: {built}")
    known = [key for field, keys in found.buffers.items() for key in keys if field == target.field]
    for key, shape in changed.items():
        old = values_of(tensors[key])
        new = resized_buffer(old, shape) if key in known else None
        if new is None:
            raise CheckpointError(f"{key}: not resized: it depends on {target.field}, but is neither ids nor a mask")
        yield TensorChange(key, old, new, SAME_PATTERN)


def buffers_without_model(tensors: Tensors, found: Found, target: Target) -> Iterator[TensorChange]:
    """Yields the ids and masks of the tables' length, recognised by their patterns, without a rebuilt model."""
    lengths: dict[int, int] = {}  # rows and usable lengths -> their new values
    for change in target.changes:
        lengths |= {change.table.length: change.length, change.table.rows: change.layout.rows(change.length)}
    for buffer in buffers_by_length(tensors, lengths, {table.key for table in found.tables}):
        yield TensorChange(*buffer, SAME_PATTERN)
