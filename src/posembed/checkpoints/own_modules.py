"""Plans a resize of a module in memory that transformers does not define: a table, and what depends on its length.

The table is found by the names of ``tables/modules.py``. Buffers of its length (ids, masks) and numbers that say it
(``max_len``, ``config.block_size``) follow, as far up as no other table could be meant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from posembed.checkpoints.edit import Edit, plan_edit
from posembed.checkpoints.find import checked
from posembed.checkpoints.found import Found, FoundTable, PositionTable, TableSize
from posembed.checkpoints.layouts import class_tokens, found_tensor
from posembed.checkpoints.rebuild import LENGTH_LIKE, OTHER_SIZES
from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout, as_table, is_table, table_rows
from posembed.tables.modules import (
    has_layout,
    is_table_name,
    layout_in,
    module_tensors,
    parent,
    table_key,
    with_layouts,
)

NOT_SINUSOIDAL = "it is a buffer, and its rows are not a fixed sinusoid whose formula is known here"
CONFIGS = ("config", "cfg", "args")  # where modules keep the settings that they were built from


@dataclass(frozen=True)
class Attribute:
    """A number that a module or its config keeps, and its new value. holder: the attributes, or a dict."""

    holder: dict[str, Any]
    name: str
    value: Any


def is_of_transformers(module: nn.Module) -> bool:
    """Whether this is a model class of transformers itself, not one derived from it."""
    transformers = sys.modules.get("transformers")  # a model of its classes has imported it
    return (
        transformers is not None
        and isinstance(module, transformers.PreTrainedModel)
        and getattr(transformers, type(module).__name__, None) is type(module)
    )


def plan_own(
    model: nn.Module, *, table: str | Sequence[str] | None, layout: TableLayout | None, **size: Any
) -> tuple[Edit, list[Attribute]]:
    """Plans what a new size changes in a module: its tensors, and the attributes that say the old size."""
    tensors = module_tensors(model)
    keys = chosen_tables(model, tensors, table)
    scope = scope_of(model, keys, tensors)
    around = model.get_submodule(scope)
    chosen = {id(tensors[key]) for key in keys}  # a buffer may have several names
    buffers = {f"{scope}.{n}".lstrip("."): buffer for n, buffer in around.named_buffers() if id(buffer) not in chosen}
    rows = {key: table_rows(tensors[key]).detach() for key in keys}
    held = buffers | rows
    found = tuple(read_table(model, key, tensors[key], layout, held) for key in keys)
    edit = plan_edit(None, held, **size, found=Found(found))
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
        for each in changed_attributes(model.get_submodule(parent(other)), around, sized[key])
    ]
    return replace(edit, tables=tuple(changes)), attributes


def chosen_tables(model: nn.Module, tensors: Mapping[str, Tensor], table: str | Sequence[str] | None) -> list[str]:
    """Returns the keys of the named tables, or of the only one that has a table's name, each once."""
    known = with_layouts(model, tensors)
    names = [table] if isinstance(table, str | None) else table
    if not isinstance(names, Sequence) or not all(isinstance(name, str | None) for name in names):
        raise ArgumentError(f"table takes the name of a table, or a list of names; got {table!r}")
    found = [table_key(tensors, name, argument="table", known=known, lone=False) for name in names]
    keys = list({id(tensors[key]): key for key in found}.values())
    for key in keys:
        owner, name = model.get_submodule(parent(key)), key.rpartition(".")[2]
        if is_parametrized(owner, name):
            raise ArgumentError(
                f"{key} is computed by a parametrization. Remove it with torch.nn.utils.parametrize."
                f"remove_parametrizations(module, {name!r}), and register it again after the resize"
            )
        for path in paths_around(key)[1:]:
            if is_of_transformers(inner := model.get_submodule(path[:-1])):
                raise ArgumentError(
                    f"{key} is in a {type(inner).__name__} of transformers, which knows what else its length changes: "
                    f"pass model.{path[:-1]} instead of the {type(model).__name__} around it"
                )
    if len({len(table_rows(tensors[key])) for key in keys}) != 1:
        raise ArgumentError(f"expected tables of one length; got {', '.join(keys) or 'none'}. Resize one after another")
    return keys


def scope_of(model: nn.Module, keys: Sequence[str], tensors: Mapping[str, Tensor]) -> str:
    """Returns the path of the largest module around the tables in which no other table of their length is found."""
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
    """Returns the paths of the modules around a tensor, each with a dot behind: "", "encoder.", "encoder.pos."."""
    steps = key.split(".")[:-1]
    return ["".join(f"{step}." for step in steps[:count]) for count in range(len(steps) + 1)]


def own_name(key: str) -> str:
    return key.removesuffix(".weight").rpartition(".")[2]


def read_table(
    model: nn.Module, key: str, tensor: Tensor, layout: TableLayout | None, held: Mapping[str, Tensor]
) -> FoundTable:
    """Returns a table of the module with its layout, or with a doubt."""
    owner, table = model.get_submodule(parent(key)), replace(found_tensor(held, key), found_by="module")
    if hasattr(owner, "before_queries_keys") and not has_layout(owner):  # another encoding of posembed
        return table.doubted(f"the rows of a {type(owner).__name__} are not positions in a line")
    if layout is None and not has_layout(owner) and class_tokens(model, key):
        return table.doubted("the model has class tokens, so how its rows are read is not known; pass layout=...")
    if layout is not None and layout.grid is not None and not has_layout(owner):
        return table.doubted("what else depends on a grid of patches is not known; see posembed.resize_table")
    read = checked(table.read_by(layout or layout_in(model, key)), Found(()), "", held)
    if isinstance(tensor, nn.Parameter) or not isinstance(read, PositionTable) or read.kind == "sinusoidal":
        return read
    return read.doubted(NOT_SINUSOIDAL)


def changed_attributes(owner: nn.Module, around: nn.Module, change: TableSize) -> Iterator[Attribute]:
    """Yields what the table's own module says of its size, and the numbers around it that say its old length."""
    table, rows = change.table, change.layout.rows(change.length)
    if has_layout(owner) and change.layout.grid:
        yield Attribute(vars(owner), "layout", change.layout)
        yield Attribute(vars(owner), "grid", change.layout.grid)
    if isinstance(owner, nn.Embedding):
        yield Attribute(vars(owner), "num_embeddings", rows)
    new = {table.rows: rows, table.length: change.length}
    for module in around.modules():
        for config in (module, *(getattr(module, name, None) for name in CONFIGS)):
            holder = config if isinstance(config, dict) else getattr(config, "__dict__", {})
            for name, value in holder.items():
                is_length = isinstance(name, str) and LENGTH_LIKE.search(name) and not OTHER_SIZES.search(name)
                if is_length and isinstance(value, Integral) and not isinstance(value, bool) and value in new:
                    yield Attribute(holder, name, new[int(value)])
