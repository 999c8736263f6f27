"""Plans how a model's config and tensors change for a new length. Nothing is written.

The tables, the tensors that depend on the same config field and the config change together or not at all. If
transformers supports the model, it is rebuilt from the new config, and the plan is refused if its shapes differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.buckets import bucket_target, read_buckets
from posembed.checkpoints.choose import (
    FRAMES,
    POSITIONS,
    QUERIES,
    WINDOW,
    NewSize,
    Target,
    axis_target,
    grid_target,
    line_target,
    together,
)
from posembed.checkpoints.families import known
from posembed.checkpoints.find import UNKNOWN_FORMULA, aliases, find_tables, is_index, key_in_files
from posembed.checkpoints.layouts import projection_beside
from posembed.checkpoints.patterns import buffers_by_length, buffers_of_windows, recomputed, resized_buffer
from posembed.checkpoints.position_tables import (
    Config,
    ConfigField,
    Found,
    PositionTable,
    Size,
    TableSize,
    Tensors,
    tiled_sizes,
)
from posembed.checkpoints.proof import as_known, proved
from posembed.checkpoints.responses import size_fields, with_field
from posembed.checkpoints.sources.base import shapes_of
from posembed.checkpoints.sources.configs import build_on_meta, config_object, source_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.safetensors import AnyTensor, values_of
from posembed.tables.layout import are_sides
from posembed.tables.patches import resample_patches
from posembed.tables.resize import changed_axes, leading_rows_kept, takes
from posembed.tables.resize_methods import TEXT, kernels_of
from posembed.words import listed

BOTH = frozenset({"encoder", "decoder"})
SAME_PATTERN = "the same pattern, longer or shorter"
RECOMPUTED = "removed, because the model recomputes it"
MAKES_PIXELS = re.compile(r"decoder_pred|to_pixels|final_layer")  # of MAE, its successors and DiT
RESAMPLED = "for patches of the new size (PI-resize of FlexiViT, arXiv:2212.08013)"


@dataclass(frozen=True, eq=False, repr=False)
class TensorChange:
    """A tensor before and after a resize. after: None if the tensor is removed. how: the method in words."""

    key: str
    before: Tensor
    after: Tensor | None
    how: str

    def __repr__(self) -> str:
        return f"{self.key}: {shape_in_words(self.before)} -> {shape_in_words(self.after)}, {self.how}"


@dataclass(frozen=True, eq=False, repr=False)
class TableChange(TensorChange):
    """A table before and after a resize. kept: the number of rows that stay the same, bit for bit. These are leading
    rows or, for limited differences (leading is False), the rows of the same differences."""

    after: Tensor
    kept: int
    leading: bool = True

    def __repr__(self) -> str:
        return f"{super().__repr__()}; {'leading ' * self.leading}rows unchanged: {self.kept}"


@dataclass(frozen=True, eq=False, repr=False)
class Edit:
    """All changes in a model for a new length.

    target: the tables and their sizes. tables: the changes of their rows. others: the changes of tensors that depend on
        the tables' length (ids, masks). config: the complete new config; None without a config.
    sides: "encoder", "decoder" or both: the sides of the model that the tables belong to. Both if only one side takes
        text.
    fields: the config fields that change, with their new values.
    checks: what runs of the model showed, in sentences.
    image_tokens: the numbers of image features that the model inserts into its text, before and after, if known.
    """

    target: Target
    tables: tuple[TableChange, ...]
    others: tuple[TensorChange, ...]
    config: dict[str, Any] | None
    sides: frozenset[str] = BOTH
    fields: Mapping[ConfigField, Any] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    image_tokens: tuple[int, int] | None = None

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {change.key: change.after for change in (*self.tables, *self.others)}

    @property
    def remarks(self) -> tuple[str, ...]:
        return (*([self.target.note] if self.target.note else []), *self.checks)

    def __repr__(self) -> str:
        return "\n".join([*map(repr, (*self.tables, *self.others)), *self.remarks])


def shape_in_words(tensor: Tensor | None) -> str:
    return "none" if tensor is None else " x ".join(map(str, tensor.shape))


def plan_edit(
    config: Config | None,
    tensors: Tensors,
    size: NewSize,
    *,
    method: str | None = None,
    table: str | None = None,
    prove: bool = False,
    found: Found | None = None,
) -> Edit:
    """Plans the changes for a new size.

    method, table, prove: as for ``resize_checkpoint``. found: the tables, if the caller has already found them.
    """
    size.refuse_others()
    found = found or find_tables(config, tensors, rebuild=prove or size.length is None)
    target = target_of(found, size, table, config or {})
    seen = known(found, target, config or {})
    if seen is None and found.model is None and config is not None:
        found = find_tables(config, tensors)
        target = target_of(found, size, table, config)
    if prove and found.model is None:
        raise CheckpointError("--prove (prove=True) runs copies of the model, which no installed library builds")
    refuse_second_copies(tensors, found, target)
    fields = {**target.values, **dict.fromkeys(repeated(found, target), target.value)}
    new_config = None if config is None else changed_config(config, found, target, fields)
    if config is not None and new_config is not None:
        fields |= source_of(found.config).follows(config, new_config, found.config, fields)
        if target.image_size is not None and found.config is not None:
            tiles = tiled_sizes(found.config.to_dict(), *target.image_size)
            fields |= {ConfigField(path, target.image_size[0]): sizes for path, sizes in tiles}
        new_config = changed_config(config, found, target, fields)
    if found.model is None or new_config is None:
        buffers = (
            without_stale(tensors, found, target) if seen is not None else buffers_without_model(tensors, found, target)
        )
        others = (*projections(tensors, found, target), *buffers)
        tables = changed_tables(tensors, target, method)
        by_key = {change.key: (change.before, change.after) for change in tables}
        checks = tuple(source_of(found.config).said_of_loading(found.config, by_key))
        return Edit(target, tables, others, new_config, fields=fields, checks=checks)
    source = source_of(found.config)
    try:
        rebuilt = config_object(new_config)
        source.keep_sizes(rebuilt, found.config, fields)
        new_model = build_on_meta(rebuilt)
    except CheckpointError as error:
        if not isinstance(target.value, list):
            raise
        given = "x".join(map(str, target.value))
        unbuilt = f"its model cannot be built with {target.field}={given}; it may take square images only"
        raise CheckpointError(f"{target.table.key}: {unbuilt} ({error})") from error
    target = source.resized_windows(found.model, new_model, target)
    if size.buckets is not None:
        target = read_buckets(found.model, new_model, target, found.config.to_dict())
    if seen is not None and not prove:
        shows = as_known((found.model, new_model), target, seen, method)
    else:
        shows = proved((found.model, new_model), target, method)
    tables = changed_tables(tensors, target, shows.method)
    patches = tuple(projections(tensors, found, target))
    resampled: dict[str, Any] = {change.key: (change.before, change.after) for change in (*tables, *patches)}
    changed = tuple(changed_buffers(tensors, found, target, new_model, resampled))
    loading = source.said_of_loading(new_model, resampled)
    checks = (*shows.sentences, *loading)
    removed = without_stale(tensors, found, target)
    sides = BOTH
    if {"input_ids", "decoder_input_ids"} <= set(signature(new_model.forward).parameters):
        paths = (change.table.parameter.split(".") for change in target.changes)
        sides = frozenset().union(*(BOTH.intersection(path) or BOTH for path in paths))
    return Edit(target, tables, (*patches, *changed, *removed), new_config, sides, fields, checks, shows.image_tokens)


def changed_tables(tensors: Tensors, target: Target, method: str | None) -> tuple[TableChange, ...]:
    """Resizes all tables. A method applies only to the tables that support it; SAM's cells and differences differ."""
    having = [takes(change.table.layout, change.layout, method) for change in target.changes]
    return tuple(
        changed_table(tensors, change, method if has or not any(having) else None)
        for change, has in zip(target.changes, having, strict=True)
    )


def without_stale(tensors: Tensors, found: Found, target: Target) -> Iterator[TensorChange]:
    """Yields the removal of old ids and masks of the tables' length, which the model recomputes."""
    sizes = {size for change in target.changes for size in (change.table.rows, change.table.length)}
    for key in found.stale:
        if tensors[key].shape[-1] in sizes or is_index(key):
            yield TensorChange(key, values_of(tensors[key]), None, RECOMPUTED)


def projections(tensors: Tensors, found: Found, target: Target) -> Iterator[TensorChange]:
    """Yields the changes of the convolutions that embed patches, for a new patch size."""
    if target.patch_size is None:
        return
    old, new = target.patch_size
    if (makes := next(pixels_made(tensors, found, old), None)) is not None:
        raise CheckpointError(f"{target.table.key}: not resized: {makes} makes pixels of each patch, as many as now")
    if found.model is None:
        names = {projection_beside(change.table.key, tensors) for change in target.changes}
    else:
        convolutions = ((f"{name}.weight", each) for name, each in found.model.named_modules())
        convolutions = (each for each in convolutions if isinstance(each[1], nn.Conv2d | nn.Conv3d))
        names = {name for name, each in convolutions if each.kernel_size[-2:] == each.stride[-2:] == old}
    keys = {key_in_files(name, tensors, found.keys) for name in names if name} - {None}
    if not keys:
        raise CheckpointError(f"{target.table.key}: not resized: the files hold no convolution over its patches")
    for key in tensors:
        if key in keys:
            weight = values_of(tensors[key])
            yield TensorChange(key, weight, resample_patches(weight, new), RESAMPLED)


def pixels_made(tensors: Tensors, found: Found, patch: Size) -> Iterator[str]:
    """Yields the names of layers that make pixels of each patch (MAE, SimMIM). No resize changes their patch size."""
    if found.model is not None:
        modules = (each for each in found.model.named_modules() if isinstance(each[1], nn.PixelShuffle))
        yield from (name for name, each in modules if each.upscale_factor % patch[0] == 0)
        return
    for key, tensor in tensors.items():
        if MAKES_PIXELS.search(key) and len(tensor.shape) > 1 and tensor.shape[0] % math.prod(patch) == 0:
            yield key


def target_of(found: Found, size: NewSize, table: str | None, config: Config) -> Target:
    if size.buckets is not None:
        return bucket_target(found, size.buckets, table)
    if size.length is not None:
        along = next((each for each in found.understood if each.key == table and POSITIONS.fields(each)), None)
        if along is None:
            return line_target(found, size.length, table)
        return axis_target(found, POSITIONS, size.length, table)
    others = ((WINDOW, size.window), (FRAMES, size.frames), (QUERIES, size.queries))
    for option, new in ((option, new) for option, new in others if new is not None):
        along_one = axis_target(found, option, new, table)
        if size.image_size is None and size.grid is None:
            return along_one
        return together(found, target_of(found, replace(size, frames=None), table, config), along_one)
    return grid_target(found, size, table, config if found.config is None else found.config.to_dict())


def refuse_second_copies(tensors: Tensors, found: Found, target: Target) -> None:
    """Refuses a table that the files also store under another key, because this second copy would not change."""
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
    method = method or table.method or None
    old = values_of(tensors[table.key])
    if table.kind == "sinusoidal":
        if method is not None:
            raise ArgumentError(f"{table.key} is a fixed sinusoid, recomputed by its formula; leave --method out")
        sinusoid = recomputed(table.values(tensors), table.layout, layout, length)
        if sinusoid is None:
            raise CheckpointError(f"{table.key}: not resized: {UNKNOWN_FORMULA}")
        new = layout.stored(sinusoid[0], like=old)
        return TableChange(table.key, old, new, sinusoid[1], kept=kept(table, change, old, new))
    try:
        new = change.resized(old, method)
    except ArgumentError as error:
        raise ArgumentError(f"{table.key}: {error}") from error
    before, after = (int((~rows.float().isfinite()).any(-1).sum()) for rows in (old, new))
    if after > before:  # rows that already were may stay; ``posembed inspect`` reports them
        damage = f"{before} of its rows hold NaN or infinity, and {after} would after the resize"
        raise CheckpointError(f"{table.key}: {damage}; repair the table, or pass another --method (method=...)")
    # By default, a shorter line is truncated.
    default = (
        "the same rows"
        if layout == table.layout and layout.axes
        else kernels_of(changed_axes(table.layout, layout)).default
        if layout.axes
        else "truncate"
        if length < table.length
        else TEXT.default
    )
    leading = not are_sides(layout.axes)
    return TableChange(table.key, old, new, method or default, kept=kept(table, change, old, new), leading=leading)


def kept(table: PositionTable, change: TableSize, old: Tensor, new: Tensor) -> int:
    before, after = table.layout.rows_in(old), change.layout.rows_in(new)
    if are_sides(change.layout.axes):
        shift = change.layout.axes[0].size - table.layout.axes[0].size
        before, after = before[max(-shift, 0) :], after[max(shift, 0) :]
        shared = min(len(before), len(after))
        return sum(map(torch.equal, before[:shared], after[:shared]))
    return leading_rows_kept(before, after) if before.numel() else 0


def changed_config(config: Config, found: Found, target: Target, fields: Mapping[ConfigField, Any]) -> dict[str, Any]:
    if target.field is None or target.value is None:
        unknown = f"config.json: no single field gives the {target.table.rows} rows of {target.table.key}"
        raise CheckpointError(f"{unknown}; pass the weights file without its config, and change the config yourself")
    changed = dict(config)
    for each, value in fields.items():
        changed = with_field(changed, found.config, each.path, value)
    return changed


def repeated(found: Found, target: Target) -> list[ConfigField]:
    """Returns the fields that repeat a size in other sections of the config: no tensor depends on them."""
    first, known = target.field, found.config
    if first is None or known is None or (target.image_size is None and not source_of(known).repeats_lengths):
        return []
    return [
        other
        for other in size_fields(known.to_dict())
        if other.path[-1] == first.path[-1]
        and other.value == first.value
        and other.path != first.path
        and other not in found.responding
    ]


def changed_buffers(
    tensors: Tensors, found: Found, target: Target, new_model: nn.Module, planned: Mapping[str, tuple[Tensor, Tensor]]
) -> Iterator[TensorChange]:
    """Yields the buffers that depend on the tables' config field, in the shapes that they have in the rebuilt model.
    Raises CheckpointError if the planned tensors, before and after, have other shapes in that model."""
    assert found.model is not None
    old_shapes = shapes_of(found.model)
    changed = {
        key: shape
        for name, shape in shapes_of(new_model).items()
        if shape != old_shapes.get(name) and (key := key_in_files(name, tensors, found.keys)) is not None
    }
    for key, (before, after) in planned.items():
        if (shape := changed.pop(key, tuple(before.shape))) != tuple(after.shape):
            built = f"the model with {target.field}={target.value} has {shape}"
            raise CheckpointError(f"{key}: not resized to {tuple(after.shape)}: {built}{remedy_for(target)}")
    known = [key for each, keys in found.buffers.items() for key in keys if each in target.values]
    for key, shape in changed.items():
        old = values_of(tensors[key])
        new = resized_buffer(old, shape) if key in known else None
        if new is None:
            fields = listed([str(field) for field, value in target.values.items() if value != field.value])
            raise CheckpointError(f"{key}: not resized: it depends on {fields}, but is neither ids nor a mask")
        yield TensorChange(key, old, new, SAME_PATTERN)


def remedy_for(target: Target) -> str:
    """Returns advice such as "; pass a size whose sides are multiples of 32 pixels", or "" if the sides are."""
    strides = [cells.stride for change in target.changes for cells in change.table.cells]
    stride = math.lcm(*(each for each in strides if isinstance(each, int)))
    fits = target.image_size is None or all(side % stride == 0 for side in target.image_size[1])
    return "" if fits else f"; pass a size whose sides are multiples of {stride} pixels"


def buffers_without_model(tensors: Tensors, found: Found, target: Target) -> Iterator[TensorChange]:
    """Yields the ids and masks of the tables' length, recognised by their patterns, without a rebuilt model."""
    lengths: dict[int, int] = {}  # rows and usable lengths -> their new values
    for change in target.changes:
        lengths |= {change.table.length: change.length, change.table.rows: change.layout.rows(change.length)}
    for buffer in buffers_by_length(tensors, lengths, {table.key for table in found.tables}):
        yield TensorChange(*buffer, SAME_PATTERN)
    of_grid = (each for each in target.changes if len(each.layout.axes) > 1 and each.layout.axes[0].relative)
    for old, new in dict.fromkeys((each.table.layout.axes, each.layout.axes) for each in of_grid):
        for buffer in buffers_of_windows(tensors, old, new):
            yield TensorChange(*buffer, f"{SAME_PATTERN}, for as many windows" if buffer[1].ndim == 3 else SAME_PATTERN)
