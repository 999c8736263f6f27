"""Finds a checkpoint's position tables, the config field of their length, and other tensors that depend on that field.

The most reliable method comes first. If transformers supports the config, the model is rebuilt with a longer length to
find the tensors that change (``responses.py``). Otherwise, the tables are those that ``tables/families.py`` lists for
the model's family. If none are listed, tables are guessed from names and shapes (``layouts.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from posembed.checkpoints.axes import Response
from posembed.checkpoints.families import explained, reason_without_table, row_of
from posembed.checkpoints.layouts import (
    all_listed,
    found_tensor,
    guessed_tables,
    known_tables,
    read_by_model,
)
from posembed.checkpoints.patterns import looks_sinusoidal, looks_standardised, recomputed
from posembed.checkpoints.position_tables import (
    Config,
    ConfigField,
    Found,
    FoundTable,
    PositionTable,
    Tensors,
    fields_in,
)
from posembed.checkpoints.responses import responses
from posembed.checkpoints.sources.base import Shape, shapes_of, takes_text
from posembed.checkpoints.sources.configs import build_on_meta, config_object, models_around, source_of
from posembed.checkpoints.sources.open_clip import OpenClipConfig, open_clip_config
from posembed.errors import CheckpointError
from posembed.tables.families import family_of
from posembed.tables.modules import is_table_name, parent

NO_NEED = "no resize"
UNCHANGED = "no length or image size in config.json changes its shape"
OF_TIMM = (
    f"{UNCHANGED}: timm builds this part of the model, and config.json gives no size of it. posembed resizes such "
    "tables in models of timm alone"
)
ROTATION = re.compile(r"Rotary|R[oO]PE|Rope")  # classes of layers
OF_WINDOW = re.compile(r"(^|\.)relative_position_bias_table$")
BUFFER = f"{UNCHANGED}: it is a buffer, which the model does not train"
NOT_LISTED = "it is not among the known tables of such a model; pass the weights file without its config"
UNKNOWN_FORMULA = "its rows are a fixed sinusoid with an unknown formula"


def find_tables(config: Config | None, tensors: Tensors, *, rebuild: bool = True) -> Found:
    """Returns the position tables among a model's tensors, in the order of the tensors. Reads only the values of
    the tables.

    rebuild: whether to rebuild the model even if ``tables/families.py`` lists all tables of its family. If False,
        transformers is not imported for such a model.
    """
    config = config or {}
    listed = () if rebuild else all_listed(config, tensors)
    known = None if listed else open_clip_config(config) or config_object(config)
    if listed:
        found = Found(listed, stale=old_buffers(listed, tensors))
    elif known is None or isinstance(known, OpenClipConfig):
        towers = () if known is None else tables_of_towers(known, tensors)
        tables, guessed = (*known_tables(config, tensors), *towers), tuple(guessed_tables(config, tensors))
        others = {table.key for table in guessed} - {table.key for table in tables}
        more = (replace(each, field=None).doubted(NOT_LISTED) for each in guessed if each.key in others)
        tables = (*tables, *more) if tables else guessed
        no_need = "" if tables else family_of(config).no_need
        found = Found(tables, without_timm(config), config=known, no_need=no_need)
    else:
        try:
            known.to_dict()  # finds the sizes of a model of timm, which all copies keep
            model = build_on_meta(known)
        except CheckpointError as error:
            # transformers supports the model but cannot build it: a package is missing, or a value is wrong.
            guesses = guessed_tables(config, tensors)
            found = Found(tuple(replace(table, doubt=f"{table.doubt} ({error})") for table in guesses))
            if not found.tables:
                raise
        else:
            found = find_by_rebuilding(config, tensors, known, model)
    keys, relative = list(tensors), relative_type(config)
    in_order = sorted(found.tables, key=lambda table: keys.index(table.key))
    return replace(found, tables=tuple(checked(table, found, relative, tensors) for table in in_order))


def tables_of_towers(known: OpenClipConfig, tensors: Tensors) -> Iterator[FoundTable]:
    for tower in known.towers:
        keys = {key.removeprefix(tower.prefix): key for key in tensors if key.startswith(tower.prefix)}
        inner = find_tables(tower.config, {name: tensors[key] for name, key in keys.items()})
        tower = replace(tower, why=tower.why or next(iter(inner.blocked.values()), ""))
        yield from map(tower.outside, inner.tables)


def without_timm(config: Config) -> dict[ConfigField, str]:
    """Returns why a timm model that was not built may show no table; {} for other models."""
    name = config.get("architecture")
    if not isinstance(name, str) or "model_type" in config:
        return {}
    why = f"timm could not be imported, or has no model {name}: pip install timm torchvision"
    return {ConfigField(("architecture",), 0): why}


def find_by_rebuilding(config: Config, tensors: Tensors, known: Any, model: nn.Module) -> Found:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    found = responses(config, known, model)
    rows = explained(model)
    renamed = any(name not in tensors for changes in (rows, *(changes for _, changes in found)) for name in changes)
    source = source_of(known)
    loaded = source.loaded_names(model, tensors) if renamed else {}
    tables: dict[str, FoundTable] = {}
    said: dict[str, FoundTable] = {}  # tables of which a row says why they are not resized
    for name, row in rows.items():
        if (key := key_in_files(name, tensors, loaded)) is not None:
            read = replace(found_tensor(tensors, key), parameter=name, found_by="config")
            read = replace(read, fixed=NO_NEED in row["why"], in_buckets=row.get("buckets", False))
            said[key] = read.doubted(row["why"])
    buffers: dict[ConfigField, tuple[str, ...]] = {}
    blocked: dict[ConfigField, str] = {}
    answers: dict[str, list[Response]] = {}  # keys of parameters in the files -> the fields that change their shapes
    names: dict[str, str] = {}
    for field, changes in found:
        for name, shapes in changes.items():
            key = key_in_files(name, tensors, loaded)
            if key is None:
                if name in parameters:
                    blocked[field] = f"{name} also depends on it, but these files do not contain it"
                continue
            shape = tuple(tensors[key].shape)
            if shape != shapes[0]:
                wrong = f"with {field}={field.value}, {key} must have the shape {shapes[0]}, but it has {shape}"
                raise CheckpointError(f"config.json: {wrong}; give the weights with their own config")
            if name not in parameters:
                buffers[field] = (*buffers.get(field, ()), key)
                continue
            names[key] = name
            answers.setdefault(key, []).append((field, *shapes))
    for key, given in answers.items():
        fields = [field for field, *_ in given]
        table = read_by_model(found_tensor(tensors, key), model, names[key], given, known)
        if not isinstance(table, PositionTable) and not table.fixed:
            table = said.get(key, table)
            if len(fields) > 1:
                why = f"{key} depends on {' and on '.join(map(str, fields))}, so neither gives its length"
            else:
                why = f"{key} also depends on it, and is not understood: {table.doubt}"
            for field in fields:
                blocked.setdefault(field, why)
        if isinstance(table, PositionTable) or table.fixed or is_table_name(key):
            tables[key] = table
    listed = [
        table if table.doubt or table.field is None else replace(table, doubt=blocked.get(table.field, ""))
        for table in tables.values()
    ]
    listed += (table for key, table in said.items() if key not in tables)
    changing = {table.key for table in listed}.union(*buffers.values())
    guesses = (guess for guess in guessed_tables(config, tensors) if guess.key not in changing)
    if (unsized := source.unsized_tables(known, tensors.keys() - changing)) is not None:
        listed += (
            replace(found_tensor(tensors, key), fixed=NO_NEED in why).doubted(why) for key, why in unsized.items()
        )
    else:
        listed += unchanged(model, tensors, guesses, changing, loaded)
    held = set(model.state_dict())
    stale = tuple(key for key in old_buffers(listed, tensors) if not held & aliases(key, model))
    responding = frozenset(field for field, _ in found)
    no_need = "" if listed or blocked or not source.has_rows else why_no_table(model)
    return Found(tuple(listed), blocked, model, known, loaded, buffers, stale, responding, no_need)


def unchanged(
    model: nn.Module, tensors: Tensors, guesses: Iterable[FoundTable], changing: set[str], loaded: Mapping[str, str]
) -> Iterator[FoundTable]:
    """Yields the tables of a transformers model that no config field resizes, each with the reason.

    guesses: the tables guessed from names and shapes. changing: the keys of tensors that a config field resizes.
    """
    buffers, shapes = dict(model.named_buffers()), shapes_of(model)
    names = {key: name for name in shapes if (key := key_in_files(name, tensors, loaded)) is not None}

    def is_table(key: str, shape: Shape) -> bool:
        """Returns whether a tensor is timm's table of window biases, or has a table's name but other dimensions."""
        if OF_WINDOW.search(key) and is_in_timm(model, names[key]):
            return True
        return is_table_name(key) and len(shape) > 3 and sum(size > 1 for size in shape) > 1

    others = (key for key, name in names.items() if key not in changing and is_table(key, shapes[name]))
    for table in (*guesses, *(found_tensor(tensors, key) for key in others)):
        name = names.get(table.key, "")
        why = BUFFER if name in buffers else OF_TIMM if name and is_in_timm(model, name) else UNCHANGED
        yield replace(table, field=None, parameter=name).doubted(why)


def why_no_table(model: nn.Module) -> str:
    """Returns why a model of transformers without a table needs no resize; "" if unknown."""
    if reason := reason_without_table(model):
        return reason
    layer = next((type(part).__name__ for part in model.modules() if ROTATION.search(type(part).__name__)), "")
    return f"the model rotates queries and keys instead ({layer}), so it needs no resize" if layer else ""


def is_in_timm(model: nn.Module, name: str) -> bool:
    return type(model.get_submodule(parent(name))).__module__.partition(".")[0] == "timm"


def old_buffers(tables: Iterable[FoundTable], tensors: Tensors) -> tuple[str, ...]:
    """Returns the keys of ids, masks and indices that fit a table. Old files store these; most models no longer do."""
    sizes = {size for table in tables if isinstance(table, PositionTable) for size in (table.rows, table.length)}
    return tuple(
        key
        for key, tensor in tensors.items()
        if is_index(key) or (is_ids_or_mask(key, tuple(tensor.shape)) and tensor.shape[-1] in sizes)
    )


def is_index(key: str) -> bool:
    """Recognises the row numbers that older models stored for each pair of cells of an image or a window."""
    return key.endswith(("relative_position_index", "relative_coords_table", "attention_bias_idxs"))


def is_ids_or_mask(key: str, shape: Shape) -> bool:
    """Recognises ids by name, and masks by name and shape: a ``bias`` of shape (1, 1, N, N) is a mask."""
    if key.endswith(("position_ids", "token_type_ids")):
        return len(shape) in (1, 2)
    return key.endswith(("bias", "mask")) and len(shape) == 4 and shape[-1] == shape[-2]


def aliases(key: str, model: nn.Module | None) -> set[str]:
    """Returns the key with and without the prefix that models with a head add for the base model."""
    prefix = "" if model is None else source_of(model.config).base_prefix(model)
    return {key, prefix + key, key.removeprefix(prefix)}


def key_in_files(name: str, keys: Iterable[str], loaded: Mapping[str, str]) -> str | None:
    """Returns the key of a model's tensor in the files, or None if no key or several keys fit.

    loaded: maps tensor names that transformers renames to their keys in the files. For any other name, the prefix may
    differ (models with a head, composite models), so the result is the only key that shares the longest suffix with it.
    """
    if name in keys or name in loaded:
        return name if name in keys else loaded[name]
    parts = name.split(".")
    for start in range(1, len(parts) - 1) or (len(parts) - 1,):  # at least two parts of a name that has more
        end = ".".join(parts[start:])
        found = [key for key in keys if key == end or key.endswith("." + end)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def checked(table: FoundTable, found: Found, relative: str, tensors: Tensors) -> FoundTable:
    """Returns the table with its kind, or with a doubt: its sinusoid has an unknown formula, its rows are frozen but
    are no sinusoid, the model takes no text, or the model also has relative positions."""
    if not isinstance(table, PositionTable):
        return table
    if not table.dtype.startswith(("F", "BF")):
        return table.doubted(f"its rows are {table.dtype}: they are quantized; resize the model, then quantize it")
    rows, layout = table.values(tensors), table.layout
    if rows.is_meta:
        raise CheckpointError(f"{table.key}: on the meta device, without values; load the weights before the resize")
    cells = layout.split(rows)[1] if layout.axes else rows
    relative_axes = any(axis.relative for axis in layout.axes)
    fixed = not relative_axes and rows.is_floating_point() and (looks_sinusoidal(cells) or looks_standardised(rows))
    if fixed:
        unknown = recomputed(rows, layout, layout, table.length) is None
        table = replace(table, kind="sinusoidal", doubt=table.doubt or (UNKNOWN_FORMULA if unknown else ""))
    if layout.axes:
        return table
    if table.kind == "learned" and found.model is not None:
        if not found.model.get_parameter(table.parameter).requires_grad:
            return table.doubted("it is frozen in the model's code, but its rows are not sines and cosines")
        around = [found.model.get_submodule(path) for path in models_around(found.model, table.parameter)]
        if not takes_text(around[0]) and row_of(found, table, {}) is None:
            return table.doubted("the model around it takes no text, so the meaning of its rows is unknown")
    distances = (key for key in tensors if "distance_embedding" in key)
    same_length = (key for key in distances if tuple(tensors[key].shape[:1]) == (2 * table.rows - 1,))
    if relative := relative or next(same_length, ""):
        return table.doubted(f"the model also has relative positions of its length ({relative})")
    return table


def relative_type(config: Config) -> str:
    """Returns the setting that adds relative positions to a BERT; "" if there is none. transformers 5 ignores it."""
    kinds = (kind for path, kind in fields_in(config) if path[-1] == "position_embedding_type")
    found = (kind for kind in kinds if isinstance(kind, str) and kind.startswith("relative"))
    return next((f"position_embedding_type={kind}" for kind in found), "")
