"""Plans the resize of a module in memory that transformers does not define.

The table is found by the names in ``tables/modules.py``. Buffers of its length (ids, masks) and attributes that hold
the length (``max_len``, ``config.block_size``) change too. They are searched in the largest module around the table
that contains no other table of the same length.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.find import checked
from posembed.checkpoints.layouts import class_tokens, found_tensor
from posembed.checkpoints.native.sizes import LINES, kind_of, like, may_be_size, new_sizes, sides
from posembed.checkpoints.plan import Edit, plan_edit
from posembed.checkpoints.position_tables import Found, FoundTable, PositionTable, Size, TableSize, pair
from posembed.checkpoints.sources.hugging_face import class_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout
from posembed.tables.modules import (
    has_layout,
    is_layer,
    is_table_name,
    layout_in,
    module_tensors,
    own_name,
    parent,
    table_key,
    with_layouts,
)
from posembed.tables.rows import as_table, is_table, table_rows

NOT_SINUSOIDAL = "it is a buffer, and its rows are not a fixed sinusoid with a known formula"
CONFIGS = ("config", "cfg", "args")  # attributes that hold the settings of a module


@dataclass(frozen=True)
class Attribute:
    """An attribute of a module or its config, and its new value. holder: the dictionary that contains the attribute."""

    holder: dict[str, Any]
    name: str
    value: Any


def is_of_transformers(module: nn.Module) -> bool:
    """Returns whether the module's class is a model class of transformers itself, not a subclass of one."""
    transformers = sys.modules.get("transformers")  # already imported if the module is one of its models
    if transformers is None or not isinstance(module, transformers.PreTrainedModel):
        return False
    config = copy.copy(module.config)
    config.architectures = [type(module).__name__]  # a part of a model need not be exported
    return class_of(config) is type(module)


def plan_own(
    model: nn.Module, size: NewSize, *, table: str | Sequence[str] | None, layout: TableLayout | None, **how: Any
) -> tuple[Edit, list[Attribute]]:
    """Plans the resize of a module: the changes of its tensors, and of the attributes that hold the old size."""
    tensors = module_tensors(model)
    keys = chosen_tables(model, tensors, table)
    scope = scope_of(model, keys, tensors)
    around = model.get_submodule(scope)
    chosen = {id(tensors[key]) for key in keys}  # a buffer may have several names
    buffers = {f"{scope}.{n}".lstrip("."): buffer for n, buffer in around.named_buffers() if id(buffer) not in chosen}
    rows = {key: table_rows(tensors[key]).detach() for key in keys}
    held = buffers | rows
    found = tuple(read_table(model, key, tensors[key], layout, held) for key in keys)
    if len(found) > 1 and (wrong := next((each for each in found if each.doubt), None)):
        raise CheckpointError(f"{wrong.key}: not resized: {wrong.doubt}")
    edit = plan_edit(None, held, size, found=Found(found), **how)
    sized = {change.table.key: change for change in edit.target.changes}
    changes = [
        replace(
            change,
            before=as_table(change.before, tensors[change.key]),
            after=as_table(change.after, tensors[change.key]),
        )
        for change in edit.tables
    ]
    attributes = [
        each
        for key in keys
        for other, tensor in tensors.items()
        if tensor is tensors[key]  # modules may share a table
        for each in changed_attributes(model.get_submodule(parent(other)), around, sized[key], edit)
    ]
    return replace(edit, tables=tuple(changes)), attributes


def chosen_tables(model: nn.Module, tensors: Mapping[str, Tensor], table: str | Sequence[str] | None) -> list[str]:
    """Returns the keys of the named tables, without duplicates. None stands for the only tensor with a table's name."""
    known = with_layouts(model, tensors)
    names = [table] if isinstance(table, str | None) else table
    found = [table_key(tensors, name, argument="table", known=known, lone=False) for name in names]
    keys = list({id(tensors[key]): key for key in found}.values())
    for key in keys:
        owner, name = model.get_submodule(parent(key)), key.rpartition(".")[2]
        if is_parametrized(owner, name):
            raise ArgumentError(
                f"{key} is computed by a parametrization. Remove it with torch.nn.utils.parametrize."
                f"remove_parametrizations(module, {name!r}), and register it again after the resize"
            )
        for hook in owner._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):  # the older norms, and pruning
                raise ArgumentError(
                    f"{key} is read through {type(hook).__name__} of torch.nn.utils. Remove it (remove_weight_norm, "
                    "remove_spectral_norm, prune.remove), and apply it again after the resize"
                )
        for path in paths_around(key)[1:]:
            if is_of_transformers(inner := model.get_submodule(path[:-1])):
                raise ArgumentError(
                    f"{key} is in a {type(inner).__name__} of transformers, where its length changes other things too: "
                    f"pass model.get_submodule({path[:-1]!r}) instead of the {type(model).__name__} around it"
                )
    if len({len(table_rows(tensors[key])) for key in keys}) != 1:
        raise ArgumentError(f"expected tables of one length; got {', '.join(keys) or 'none'}; resize one at a time")
    return keys


def scope_of(model: nn.Module, keys: Sequence[str], tensors: Mapping[str, Tensor]) -> str:
    """Returns the path of the largest module around the tables that contains no other table of their length."""
    chosen, names = {id(tensors[key]) for key in keys}, {own_name(key) for key in keys}
    rows, known = len(table_rows(tensors[keys[0]])), with_layouts(model, tensors)
    others = [
        key
        for key, tensor in tensors.items()
        if (key in known or is_table_name(key) or own_name(key) in names)
        and id(tensor) not in chosen
        and is_table(tensor)
        and len(table_rows(tensor)) == rows
    ]
    around = [path for path in paths_around(keys[0]) if all(key.startswith(path) for key in keys)]
    alone = (path for path in around if not any(key.startswith(path) for key in others))
    return next(alone, around[-1]).removesuffix(".")


def paths_around(key: str) -> list[str]:
    """Returns the paths of the modules around a tensor, each with a final dot: "", "encoder.", "encoder.pos."."""
    steps = key.split(".")[:-1]
    return ["".join(f"{step}." for step in steps[:count]) for count in range(len(steps) + 1)]


def read_table(
    model: nn.Module, key: str, tensor: Tensor, layout: TableLayout | None, held: Mapping[str, Tensor]
) -> FoundTable:
    """Returns a table of the module with its layout, or with a doubt if it cannot be resized."""
    owner, table = model.get_submodule(parent(key)), replace(found_tensor(held, key), found_by="module")
    if hasattr(owner, "before_queries_keys") and not has_layout(owner):  # another encoding of posembed
        return table.doubted(f"the rows of a {type(owner).__name__} are not positions in a line")
    if isinstance(getattr(owner, "drawn", None), Tensor):  # ExtendedPositionalEmbedding, method "random"
        return table.doubted("it has drawn the rows past its own for a fixed length; build a new layer, with longest=")
    if layout is None and not has_layout(owner) and class_tokens(model, key):
        return table.doubted("the model has class tokens, so the layout of its rows is unknown; pass layout=...")
    layout = layout or layout_in(model, key)
    if layout.grid is not None and not has_layout(owner):
        return table.doubted("other things that depend on a grid of patches are unknown; see posembed.resize_table")
    read = checked(table.read_by(layout), Found(()), "", held)
    if isinstance(tensor, nn.Parameter) or not isinstance(read, PositionTable) or read.kind == "sinusoidal":
        return read
    return read.doubted(NOT_SINUSOIDAL)


def changed_attributes(owner: nn.Module, around: nn.Module, change: TableSize, edit: Edit) -> Iterator[Attribute]:
    """Yields the attributes to change in the table's own module, and those in ``around`` that hold the old size."""
    if has_layout(owner) and change.layout.grid:
        yield Attribute(vars(owner), "layout", change.layout)
        yield Attribute(vars(owner), "grid", change.layout.grid)
    if isinstance(owner, nn.Embedding):
        yield Attribute(vars(owner), "num_embeddings", change.layout.rows(change.length))
    own = [module for module in around.modules() if not is_layer(module)]  # the input_size of nn.LSTM is a width
    held = [config for module in own for config in (module, *(getattr(module, name, None) for name in CONFIGS))]
    held = [config for config in held if not isinstance(config, type)]
    holders = [config if isinstance(config, dict) else getattr(config, "__dict__", {}) for config in held]
    numbers = [
        (holder, name, value, old)
        for holder in holders
        for name, value in holder.items()
        if isinstance(name, str) and (isinstance(value, Integral) or type(value) in (list, tuple, torch.Size))
        if (old := sides(value))
    ]
    patches = {pair(each.stride) for each in around.modules() if isinstance(each, nn.Conv2d | nn.Unfold)}
    new = new_values(change, edit, patches | {old for _, name, _, old in numbers if "patch" in name})
    for holder, name, value, old in numbers:
        number = isinstance(value, Integral)
        size = new.get((kind_of((name,)), old[0] if number else old)) if may_be_size((name,)) else None
        if size is not None:
            yield Attribute(holder, name, size if number else like(value, size))


def new_values(change: TableSize, edit: Edit, patches: Iterable[Size | None]) -> dict[tuple[str, Any], Any]:
    """Returns the new numbers and (height, width), by kind of name (``native.sizes``) and old value.

    An image that the old grid splits into patches of one of these sizes, in pixels, grows with the grid.
    """
    table, before, after = change.table, change.table.layout.grid, change.layout.grid
    new: dict[tuple[str, Any], Any] = dict(new_sizes(edit)[1])
    if before and after:
        for height, width in filter(None, patches):
            new["image_size", (before[0] * height, before[1] * width)] = after[0] * height, after[1] * width
    new |= {(kind, old[0]): size[0] for (kind, old), size in new.items() if len({*old}) == len({*size}) == 1}
    for kind in ("",) if after else LINES:
        new |= {(kind, table.rows): change.layout.rows(change.length), (kind, table.length): change.length}
    return new
