"""Which tensors of a checkpoint are position tables, which config field says their length, and what hangs on it.

The surest way first: where transformers knows the config, the model is rebuilt with a longer length to see what
changes (``rebuild.py``). Then what is known of open_clip's and timm's files, and last a guess by names and shapes
(``families.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from posembed.checkpoints.families import guessed_tables, is_table_name, known_tables
from posembed.checkpoints.found import Config, FieldPath, Found, FoundTable, NotUnderstood, Tensors
from posembed.checkpoints.layouts import grid_layout, is_image_size, line_layout, patch_size
from posembed.checkpoints.names import key_in_files, loaded_names
from posembed.checkpoints.rebuild import Response, build_on_meta, config_object, responses, section_of
from posembed.checkpoints.sinusoids import is_grid_sinusoid, looks_sinusoidal, recognise
from posembed.checkpoints.small import models_around, takes_text
from posembed.checkpoints.tensor_files import dtype_name, values_of
from posembed.errors import CheckpointError

UNCHANGED = "no length or image size in config.json changes its shape"


def find_tables(config: Config | None, tensors: Tensors) -> Found:
    """The position tables among a model's tensors, in their order. Reads the tables' own values and no others.

    Raises:
        CheckpointError: the config disagrees with the tables, or transformers refuses the config.
    """
    known = None if config is None else config_object(config)
    if config is None or known is None:
        found = Found(tuple(known_tables(config, tensors) or guessed_tables(config, tensors)))
    else:
        try:
            model = build_on_meta(known)
        except CheckpointError as error:
            found = Found(tuple(guessed_because(error, config, tensors)))
        else:
            found = find_by_rebuilding(config, tensors, known, model)
    order = {key: place for place, key in enumerate(tensors)}
    tables = sorted(found.tables, key=lambda table: order[table.key])
    relative = relative_type(config or {})
    return replace(
        found,
        tables=tuple(beside_relative(relative, tensors, of_a_text(found, with_kind(tensors, t))) for t in tables),
    )


def relative_type(config: Config) -> str:
    """The setting by which a BERT has relative positions too, "" where it has none; transformers 5 ignores it."""
    kind = config.get("position_embedding_type")
    if isinstance(kind, str) and kind.startswith("relative"):
        return f"position_embedding_type={kind}"
    inner = (relative_type(section) for section in config.values() if isinstance(section, dict))
    return next(filter(None, inner), "")


def beside_relative(relative: str, tensors: Tensors, table: FoundTable) -> FoundTable:
    """The table; without a layout where relative positions of its length stand beside it."""
    if table.layout is None or table.layout.grid is not None:
        return table
    distances = (
        key
        for key, tensor in tensors.items()
        if "distance_embedding" in key and tuple(tensor.shape[:1]) == (2 * table.rows - 1,)
    )
    if not (relative := relative or next(distances, "")):
        return table
    return replace(table, layout=None, doubt=f"relative positions of its length stand beside it ({relative})")


def guessed_because(error: CheckpointError, config: Config, tensors: Tensors) -> list[FoundTable]:
    """Guesses where transformers knows a model but cannot build it here: a package is missing, or a value."""
    guesses = guessed_tables(config, tensors)
    if not guesses:
        raise error
    return [replace(table, doubt=f"{table.doubt} ({error})") for table in guesses]


def find_by_rebuilding(config: Config, tensors: Tensors, known: Any, model: nn.Module) -> Found:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    found = responses(config, known, model)
    renamed = any(name not in tensors for response in found for name in response.changes)
    loaded = loaded_names(model, tensors) if renamed else {}
    tables: dict[str, FoundTable] = {}
    buffers: dict[FieldPath, tuple[str, ...]] = {}
    blocked: dict[FieldPath, str] = {}
    for response in found:
        for name, (before, _) in response.changes.items():
            key = key_in_files(name, tensors, loaded)
            if key is None:
                if name in parameters:
                    blocked[response.field] = f"{name} hangs on it too, and these files do not hold it"
                continue
            shape = tuple(tensors[key].shape)
            if shape != before:
                raise CheckpointError(
                    f"config.json: {dotted(response.field)}={response.value} means that {key} has the shape "
                    f"{before}, but it has {shape}; give the weights with the config that they belong to"
                )
            if name not in parameters:
                buffers[response.field] = (*buffers.get(response.field, ()), key)
                continue
            table = understood(tensors, key, model, name, response, known)
            if table.layout is None:
                blocked.setdefault(response.field, f"{key} hangs on it too, and is not understood: {table.doubt}")
            elif key in tables:
                fields = (tables[key].config_field or (), response.field)
                both = " and on ".join(map(dotted, fields))
                blocked |= dict.fromkeys(fields, f"{key} hangs on {both}, so neither says its length")
            if table.layout is not None or is_table_name(key):
                tables.setdefault(key, table)
    listed = [
        replace(table, doubt=table.doubt or blocked.get(table.config_field or (), "")) for table in tables.values()
    ]
    changing = {table.key for table in listed}.union(*buffers.values())
    listed += [
        replace(guess, layout=None, config_field=None, config_value=None, doubt=UNCHANGED)
        for guess in guessed_tables(config, tensors)
        if guess.key not in changing
    ]
    return Found(tuple(listed), buffers, blocked, loaded, stale_buffers(tensors, model, listed), model, known)


def understood(tensors: Tensors, key: str, model: nn.Module, name: str, response: Response, known: Any) -> FoundTable:
    """The table under ``key``, which is the model's parameter ``name``; without a layout where it is none."""
    before, after = response.changes[name]
    section = section_of(known, response.field)
    image = is_image_size(response.field, section)
    table = FoundTable(
        key=key,
        parameter=name,
        shape=before,
        dtype=dtype_name(tensors[key]),
        layout=None,
        found_by="config",
        config_field=response.field,
        config_value=response.value,
        patch=patch_size(section) if image else None,
    )
    try:
        rows = rows_that_grew(before, after)
        if image:
            layout = grid_layout(model, name, rows, response.field, response.value, section)
        elif isinstance(response.value, int):
            layout = line_layout(model, name, rows, response.field, response.value, section)
        else:
            raise NotUnderstood(f"{dotted(response.field)} gives two sizes and no patch_size stands beside it")
    except NotUnderstood as reason:
        return replace(table, doubt=str(reason))
    return replace(table, layout=layout)


def rows_that_grew(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int]:
    """(N, D) or (1, N, D) before and after -> N before and after; refuses every other change."""
    is_table = len(before) == 2 or (len(before) == 3 and before[0] == after[0] == 1)
    if not is_table or len(after) != len(before) or before[-1] != after[-1]:
        raise NotUnderstood(f"its shape goes from {before} to {after}; a table is (rows, width) and changes its rows")
    return before[-2], after[-2]


def stale_buffers(tensors: Tensors, model: nn.Module, tables: list[FoundTable]) -> tuple[str, ...]:
    """Tensors of a table's length that old files hold and the model no longer does: ids, and causal masks."""
    names = set(model.state_dict())
    prefix = getattr(model, "base_model_prefix", "") + "."
    sizes = {size for table in tables if table.layout is not None for size in (table.rows, table.length)}
    return tuple(
        key
        for key, tensor in tensors.items()
        if is_ids_or_mask(key, tuple(tensor.shape))
        and tensor.shape[-1] in sizes
        and not names & {key, prefix + key, key.removeprefix(prefix)}
    )


def is_ids_or_mask(key: str, shape: tuple[int, ...]) -> bool:
    """Recognises it by its name, and a mask by its shape too: a ``bias`` is a mask if it is (1, 1, N, N)."""
    if key.endswith(("position_ids", "token_type_ids")):
        return len(shape) in (1, 2)
    return key.endswith(("bias", "mask")) and len(shape) == 4 and shape[-1] == shape[-2]


def with_kind(tensors: Tensors, table: FoundTable) -> FoundTable:
    """The table, with what its values say: learned, or a fixed sinusoid."""
    if table.layout is None or not (rows := rows_of(tensors, table)).is_floating_point():
        return table
    grid, cells = table.layout.grid, table.layout.split(rows)[1]
    if not looks_sinusoidal(cells if grid else rows):
        return table
    if not (is_grid_sinusoid(cells, grid) if grid else recognise(rows)) and not table.doubt:
        table = replace(table, doubt="its rows are a fixed sinusoid whose formula is not known here")
    return replace(table, kind="sinusoidal")


def of_a_text(found: Found, table: FoundTable) -> FoundTable:
    """The table; without a layout where it lies in a line and the model around it is fed no text."""
    if found.model is None or table.layout is None or table.layout.grid is not None or table.kind != "learned":
        return table
    path = next(models_around(found.model, table.parameter))
    if takes_text(found.model.get_submodule(path)):
        return table
    return replace(table, layout=None, doubt="the model around it takes no text, so what its rows are is not known")


def rows_of(tensors: Tensors, table: FoundTable) -> Tensor:
    """(N, D): the values of a table."""
    return values_of(tensors[table.key]).reshape(table.rows, table.width)


def dotted(field: FieldPath) -> str:
    return ".".join(field)
