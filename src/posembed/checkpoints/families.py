"""Tables of models that transformers does not build: open_clip's and timm's by their configs, others guessed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from posembed.checkpoints.found import Config, FieldPath, FieldValue, FoundTable, Tensors
from posembed.checkpoints.layouts import pair
from posembed.checkpoints.rebuild import length_like_fields
from posembed.checkpoints.tensor_files import dtype_name
from posembed.tables.layout import TableLayout

NAMED_LIKE_A_TABLE = re.compile(r"pos(ition)?s?(al)?_?(emb|enc)|embed_positions|\bwpe\b")
NOT_A_TABLE = re.compile(r"rel(ative)?_|_rel|bias|conv|kernel|[xyhw]_position|2d|proj|norm|gate|scale")
IN_IMAGE_MODEL = re.compile(r"vis(ion|ual)|image|patch")
A_GUESS = "found by its name and shape alone; to resize it, name it with --table (table=...)"

# How families that count positions from their padding token do it, for where transformers is not there to say.
COUNTED_FROM_PADDING = {"roberta", "xlm-roberta", "camembert", "longformer", "layoutlmv3", "mpnet"}
COUNTED_FROM_TWO = {"bart", "mbart", "opt", "trocr", "nystromformer"}


def known_tables(config: Config | None, tensors: Tensors) -> list[FoundTable]:
    """The tables of an open_clip or timm checkpoint, by what their authors' code does."""
    config = config or {}
    if isinstance(config.get("model_cfg"), dict):
        return list(open_clip_tables(tensors, config["model_cfg"]))
    if isinstance(config.get("architecture"), str) and "pos_embed" in tensors:
        return list(timm_tables(tensors, config))
    return []


def open_clip_tables(tensors: Tensors, model: Config) -> Iterator[FoundTable]:
    text, vision = model.get("text_cfg") or {}, model.get("vision_cfg") or {}
    for key in ("positional_embedding", "text.positional_embedding"):
        length = text.get("context_length", 77)
        if key in tensors:
            table = described(tensors, key, ("model_cfg", "text_cfg", "context_length"), length)
            yield judged(table, TableLayout(), length)
    key = "visual.positional_embedding"
    size, patch = pair(vision.get("image_size", 224)), pair(vision.get("patch_size"))
    if key in tensors and size is not None and patch is not None:
        field = ("model_cfg", "vision_cfg", "image_size")
        table = described(tensors, key, field, vision.get("image_size", 224), patch)
        grid = size[0] // patch[0], size[1] // patch[1]
        yield judged(table, TableLayout(prefix=1, grid=grid), grid[0] * grid[1])


def timm_tables(tensors: Tensors, config: Config) -> Iterator[FoundTable]:
    """timm's ``pos_embed``; how many rows stand before its grid is what the grid leaves over, at most two."""
    patches = tensors.get("patch_embed.proj.weight")
    arguments, trained = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    size = pair(arguments.get("img_size")) or pair((trained.get("input_size") or [])[1:])
    if patches is None or len(patches.shape) != 4 or size is None:
        return
    patch = int(patches.shape[2]), int(patches.shape[3])
    value = size[0] if size[0] == size[1] else size
    table = described(tensors, "pos_embed", ("model_args", "img_size"), value, patch)
    grid = size[0] // patch[0], size[1] // patch[1]
    prefix = table.rows - grid[0] * grid[1]
    yield judged(table, TableLayout(prefix=min(max(prefix, 0), 2), grid=grid), grid[0] * grid[1])


def guessed_tables(config: Config | None, tensors: Tensors) -> list[FoundTable]:
    """Tables by shape and name alone. Each says in its doubt that it is a guess."""
    found = []
    for key, tensor in tensors.items():
        lead, shape = tensor.shape[:-2], tensor.shape[-2:]
        if not is_table_name(key) or len(shape) != 2 or any(size != 1 for size in lead) or len(lead) > 1:
            continue
        if min(shape) < 2 or not dtype_name(tensor).startswith(("F", "BF")):
            continue
        table = described(tensors, key, None, None)
        in_image = bool(lead) or IN_IMAGE_MODEL.search(key)
        found.append(guessed_grid(table) if in_image else guessed_line(table, config or {}))
    return found


def guessed_line(table: FoundTable, config: Config) -> FoundTable:
    model_type, padding = config.get("model_type"), config.get("pad_token_id")
    layout = TableLayout()
    if model_type in COUNTED_FROM_PADDING and type(padding) is int:
        layout = TableLayout.roberta(padding)
    elif model_type in COUNTED_FROM_TWO:
        layout = TableLayout.BART
    fields = [
        (field, value)
        for field, value in length_like_fields(config)
        if value in (table.rows, layout.length(table.rows)) and type(value) is int
    ]
    field, value = fields[0] if len(fields) == 1 else (None, None)
    return replace(table, layout=layout, config_field=field, config_value=value, doubt=A_GUESS)


def guessed_grid(table: FoundTable) -> FoundTable:
    for prefix in (0, 1, 2):
        side = math.isqrt(max(table.rows - prefix, 0))
        if side > 1 and side * side == table.rows - prefix:
            return replace(table, layout=TableLayout(prefix=prefix, grid=(side, side)), doubt=A_GUESS)
    return replace(table, doubt="nothing says how its rows lie as a grid, and they are not a square")


def is_table_name(key: str) -> bool:
    return bool(NAMED_LIKE_A_TABLE.search(key)) and not NOT_A_TABLE.search(key)


def described(
    tensors: Tensors,
    key: str,
    field: FieldPath | None,
    value: FieldValue | None,
    patch: tuple[int, int] | None = None,
) -> FoundTable:
    tensor = tensors[key]
    return FoundTable(
        key=key,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        layout=None,
        config_field=field,
        config_value=value,
        patch=patch,
    )


def judged(table: FoundTable, layout: TableLayout, length: int) -> FoundTable:
    """A table with its family's layout, or with a doubt where its shape is not what that layout gives.

    The config may be right then: not every model of timm has a row for each patch of its first convolution.
    """
    rows = layout.front + length + layout.tail
    if table.rows == rows and len(table.shape) <= 3 and all(size == 1 for size in table.shape[:-2]):
        return replace(table, layout=layout, found_by="family")
    given = f"{'.'.join(table.config_field or ())}={table.config_value}"
    patches = "" if layout.grid is None else f" ({layout.grid[0]} x {layout.grid[1]} patches, and their tokens)"
    return replace(table, doubt=f"its shape {table.shape} is not the one row a position of {given}{patches}")
