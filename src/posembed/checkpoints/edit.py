"""What a new length changes in a model: (config, tensors) -> the edits, with nothing written.

The tables, the tensors that hang on the same config field and the config change together or not at all. Where
transformers knows the model, it is rebuilt from the new config, and edits whose shapes do not agree are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.buffers import buffers_by_length, resized_buffer
from posembed.checkpoints.choose import Target, grid_target, line_target
from posembed.checkpoints.find import dotted, find_tables, rows_of
from posembed.checkpoints.found import Config, Found, FoundTable, Tensors
from posembed.checkpoints.names import key_in_files
from posembed.checkpoints.rebuild import build_on_meta, config_object, shapes_of, with_field
from posembed.checkpoints.sinusoids import grid_sinusoid, recognise
from posembed.checkpoints.small import NotTried, models_around, takes_text
from posembed.checkpoints.tensor_files import AnyTensor, values_of
from posembed.checkpoints.trial import Reading, contradiction
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout
from posembed.tables.resize import DEFAULT_GRID_METHOD, DEFAULT_TEXT_METHOD, leading_rows_kept, resize_table

BOTH = frozenset({"encoder", "decoder"})


@dataclass(frozen=True, eq=False)
class TensorChange:
    """A tensor before and after; ``after`` is None where it is taken out. how: the method, in words.

    kept: how many rows of a table, from the first on, stay as they were, bit for bit.
    """

    key: str
    before: Tensor
    after: Tensor | None
    how: str
    kept: int = 0


@dataclass(frozen=True, eq=False)
class Edit:
    """All that a new length changes in a model.

    target: which tables, and their sizes. tables: their rows. others: what hangs on them (ids, masks).
    config: the new config, whole; None where there was none.
    sides: which side of a model the tables belong to, "encoder", "decoder" or both, where both are fed text.
    """

    target: Target
    tables: tuple[TensorChange, ...]
    others: tuple[TensorChange, ...]
    config: dict[str, Any] | None
    sides: frozenset[str] = BOTH

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {change.key: change.after for change in (*self.tables, *self.others)}


def plan_edit(
    config: Config | None,
    tensors: Tensors,
    *,
    length: int | None = None,
    image_size: tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    method: str | None = None,
    table: str | None = None,
) -> Edit:
    """What a new usable length, image size (height, width) or grid changes in a model.

    Raises:
        ArgumentError: a size or a method that cannot be used.
        CheckpointError: no table, or not one alone, can be meant; something that hangs on it is not understood.
    """
    if sum(size is not None for size in (length, image_size, grid)) != 1:
        raise ArgumentError("expected one of --length, --image-size and --grid (length=, image_size=, grid=)")
    if not isinstance(method, str | None):
        raise ArgumentError(f"--method (method=...) takes the name of a method; got {method!r}")
    found = find_tables(config, tensors)
    if length is not None:
        target = line_target(found, length, table)
    else:
        target = grid_target(found, image_size=image_size, grid=grid, key=table)
    refuse_second_copies(tensors, found, target)
    new_config = None if config is None else changed_config(config, found, target)
    tables = tuple(changed_table(tensors, *change, method=method) for change in target.tables)
    if found.model is None or new_config is None:
        buffers = buffers_without_model(tensors, found, target)
    else:
        model = rebuilt(new_config, target)
        buffers = changed_buffers(tensors, found, target, model, tables)
        refuse_misread(found, target, model)
    others = (*buffers, *taken_out(tensors, found, target))
    return Edit(target, tables, others, new_config, sides_of(found.model, target))


def sides_of(model: nn.Module | None, target: Target) -> frozenset[str]:
    """The sides whose tables get another length, where encoder and decoder are both fed text."""
    if model is None or not {"input_ids", "decoder_input_ids"} <= set(signature(model.forward).parameters):
        return BOTH
    parts = [set(table.parameter.split(".")) & BOTH for table, _, _ in target.tables]
    return frozenset().union(*(part or BOTH for part in parts))


def refuse_second_copies(tensors: Tensors, found: Found, target: Target) -> None:
    """Refuse a table that stands in the files a second time, where only one of the two would change.

    Raises:
        CheckpointError: a model loads two keys into one table, or two keys of a pickle share its values.
    """
    changed = {table.key for table, _, _ in target.tables}
    prefix = f"{getattr(found.model, 'base_model_prefix', '')}."
    for key in changed:
        # A model with a head puts its base model's name in front of every key, and loads keys without it too.
        names = {prefix + key, key.removeprefix(prefix)} if found.model is not None and prefix != "." else set()
        for other in tensors.keys() - changed:
            if other in names or share_values(tensors[key], tensors[other]):
                raise CheckpointError(
                    f"{key}: the files hold this table a second time, as {other}, which would stay as it is; save "
                    "the model again with one of the two"
                )


def share_values(one: AnyTensor, other: AnyTensor) -> bool:
    """Whether two tensors of a pickle lie in the same memory."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.is_meta:
        return False
    return one.shape == other.shape and one.data_ptr() == other.data_ptr() != 0


def changed_table(
    tensors: Tensors, table: FoundTable, layout: TableLayout, length: int, *, method: str | None
) -> TensorChange:
    """A table's new rows: learned ones by the method, fixed sinusoids by their own formula."""
    old = values_of(tensors[table.key])
    if table.kind == "sinusoidal":
        if method is not None:
            raise ArgumentError(f"{table.key} is a fixed sinusoid and is made anew by its formula; leave --method out")
        new, formula = new_sinusoid(rows_of(tensors, table), layout, length)
        new = new.reshape(*old.shape[:-2], *new.shape)
        return TensorChange(table.key, old, new, formula, kept=leading_rows_kept(old, new))
    assert table.layout is not None
    try:
        new = resize_table(
            old,
            length=length if layout.grid is None else None,
            grid=layout.grid,
            method=method,
            layout=table.layout,
        )
    except ArgumentError as error:
        raise ArgumentError(f"{table.key}: {error}") from error
    refuse_spread(table.key, old, new)
    how = method or (DEFAULT_TEXT_METHOD if layout.grid is None else DEFAULT_GRID_METHOD)
    if method is None and layout.grid is None and length < (table.length or 0):
        how = "truncate"  # which is what the default does there
    return TensorChange(table.key, old, new, how, kept=leading_rows_kept(old, new))


def refuse_spread(key: str, old: Tensor, new: Tensor) -> None:
    """Refuse new rows that are not finite. Old ones that stay are reported by ``posembed inspect``."""
    before, after = (int((~rows.float().isfinite()).any(-1).sum()) for rows in (old, new))
    if after > before:
        raise CheckpointError(
            f"{key}: {before} of its rows hold NaN or infinity, and {after} would after the resize; mend the "
            "table, or pass another --method (method=...)"
        )


def new_sinusoid(old: Tensor, layout: TableLayout, length: int) -> tuple[Tensor, str]:
    """Fixed sines and cosines (N, D) for another length or grid, and the formula's name."""
    if layout.grid is not None:
        cells = grid_sinusoid(layout.grid, old.shape[1]).to(old.dtype)
        behind = old[len(old) - layout.tail :]
        return torch.cat([old[: layout.front], cells, behind]), "sines and cosines of column and line (MAE)"
    sinusoid = recognise(old)
    assert sinusoid is not None
    new = sinusoid.rows(layout.rows(length), old.shape[1]).to(old.dtype)
    shared = min(len(new), len(old))
    new[:shared] = old[:shared]  # another library's rounding is kept where there is one
    return new, sinusoid.formula


def changed_config(config: Config, found: Found, target: Target) -> dict[str, Any]:
    """The config with its field set. Raises CheckpointError where no field says the length that changes."""
    table = target.tables[0][0]
    if table.config_field is None or target.value is None:
        raise CheckpointError(
            f"config.json: no field, or more than one, says the {table.rows} rows of {table.key}, so it cannot be "
            "kept in step; give the weights file alone, and change the config of its model by hand"
        )
    value = list(target.value) if isinstance(target.value, tuple) else target.value
    return with_field(config, found.known, table.config_field, value)


def changed_buffers(
    tensors: Tensors, found: Found, target: Target, model: nn.Module, tables: tuple[TensorChange, ...]
) -> list[TensorChange]:
    """The buffers that hang on the same field, in the shapes of the model rebuilt from the new config.

    Raises:
        CheckpointError: the rebuilt model does not agree with the tables, or a buffer's pattern is not known.
    """
    assert found.model is not None
    field = target.tables[0][0].config_field or ()
    old_shapes, new_shapes = shapes_of(found.model), shapes_of(model)
    changed = {
        key: shape
        for name, shape in new_shapes.items()
        if shape != old_shapes.get(name) and (key := key_in_files(name, tensors, found.keys)) is not None
    }
    for table in tables:
        assert table.after is not None
        built = changed.pop(table.key, tuple(table.before.shape))
        if built != tuple(table.after.shape):
            raise CheckpointError(
                f"{table.key}: the new table has the shape {tuple(table.after.shape)}, but a model with "
                f"{dotted(field)}={target.value} wants {built}; not resized"
            )
    buffers = []
    for key, shape in changed.items():
        old = values_of(tensors[key])
        new = resized_buffer(old, shape) if key in found.buffers.get(field, ()) else None
        if new is None:
            raise CheckpointError(f"{key}: hangs on {dotted(field)} too, and is neither ids nor a mask; not resized")
        buffers.append(TensorChange(key, old, new, "the same pattern, longer or shorter"))
    return buffers


def buffers_without_model(tensors: Tensors, found: Found, target: Target) -> list[TensorChange]:
    """The ids and masks of the tables' length, by their patterns, where no model says what else changes."""
    lengths: dict[int, int] = {}  # rows and usable lengths -> what they become
    for table, layout, length in target.tables:
        assert table.length is not None
        lengths |= {table.length: length, table.rows: layout.rows(length)}
    changes = buffers_by_length(tensors, lengths, {table.key for table in found.tables})
    return [TensorChange(*change, "the same pattern, longer or shorter") for change in changes]


def refuse_misread(found: Found, target: Target, new_model: nn.Module) -> None:
    """Refuse tables that the model reads otherwise than planned, and those of which that cannot be seen.

    A run is asked of every table but two kinds: fixed sinusoids in a line, which a formula gives for any position,
    and text whose model could not be run at its own size, where the names of field and inputs must do.

    Raises:
        CheckpointError: a run speaks against a table, or none was possible.
    """
    assert found.model is not None
    old_size, new_size = target.image_size or (None, None)
    for table, layout, length in target.tables:
        if table.kind == "sinusoidal" and layout.grid is None:
            continue
        assert table.layout is not None
        assert table.length is not None
        name, patch = table.parameter, table.patch
        before = Reading(found.model, name, table.layout, table.length, old_size, patch)
        try:
            problem = contradiction(before, Reading(new_model, name, layout, length, new_size, patch))
        except NotTried as reason:
            models = map(found.model.get_submodule, models_around(found.model, name))
            if layout.grid is None and target.is_text and any(map(takes_text, models)):
                continue
            problem = f"no small copy of its model could be run to see how its rows are read ({reason})"
        if problem:
            raise CheckpointError(f"{table.key}: not resized: {problem}")


def rebuilt(config: Config, target: Target) -> nn.Module:
    try:
        return build_on_meta(config_object(config))
    except CheckpointError as error:
        if isinstance(target.value, tuple):
            key, (height, width) = target.tables[0][0].key, target.value
            raise CheckpointError(
                f"{key}: its model cannot be built for {height} x {width} pixels, perhaps only for square images "
                f"({error})"
            ) from error
        raise


def taken_out(tensors: Tensors, found: Found, target: Target) -> list[TensorChange]:
    """Buffers of the old length that the model no longer keeps and makes anew."""
    sizes = {size for table, _, _ in target.tables for size in (table.rows, table.length)}
    how = "taken out: the model makes it anew"
    return [
        TensorChange(key, values_of(tensors[key]), None, how) for key in found.stale if tensors[key].shape[-1] in sizes
    ]
