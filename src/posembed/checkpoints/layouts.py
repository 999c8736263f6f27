"""Determines the layouts of tables: which row belongs to which position.

If transformers can build the model, its config and the modules around the table show the layout. For other models the
layout comes from ``tables/families.py``, or is guessed from the table's name and shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from posembed.checkpoints.axes import Explanation, Response, explain, limited, role_of
from posembed.checkpoints.buckets import REACHES
from posembed.checkpoints.families import rows_in_words, rows_said
from posembed.checkpoints.patterns import looks_sinusoidal, recomputed
from posembed.checkpoints.position_tables import (
    Cells,
    Config,
    ConfigField,
    FoundTable,
    PositionTable,
    Size,
    Tensors,
    pair,
    section,
)
from posembed.checkpoints.proof.prove import why_unread
from posembed.checkpoints.responses import BUCKETS, size_fields
from posembed.checkpoints.sources.model_types import is_typed
from posembed.modelfiles.safetensors import AnyTensor, dtype_name, values_of
from posembed.tables.families import COMPUTED, FieldPath, family_of
from posembed.tables.layout import TableLayout
from posembed.tables.modules import is_layer, is_table_name, parent, shown_layout
from posembed.tables.usual_configs import is_ordinary

LINE_LENGTH = re.compile(r"position_embeddings|n_positions|seq|max_(len|text)|context|(target|source)_positions|block")
CLASS_TOKENS = re.compile(r"cls|class|dist")
CLASS_TOKEN = re.compile(r"(cls|class|dist\w*)_token$")
BRANCH = re.compile(r"_\d+$")
NUMBER = re.compile(r"\d+$")
ALIAS = "max_position_embeddings"
POOLS = ("AttentionPool2d",)  # of timm, whose row 0 is that of the mean of all cells
DETECTION_TOKENS = re.compile(r"detection_tokens$")  # YOLOS puts them behind the patches
REGISTERS = re.compile(r"(^|\.)reg_token$")  # timm adds the table after it has put them behind the class token
LAST_TOKEN = "cls_emb"  # of a text, in open_clip
IN_IMAGE_MODEL = re.compile(r"vis(ion|ual)|image|patch")
OF_IMAGES = re.compile(rf"{IN_IMAGE_MODEL.pattern}|(cls|class|dist|mask)_token|(^|\.)cls$")  # names of tensors
OF_TEXTS = re.compile(r"wte|vocab|embed_tokens|embed_in|(tok(en)?s?|word|char)_?emb")
SOUND_INPUT = "encoder.conv1.weight"  # of Whisper, whose shape depends on num_mel_bins
LEAST_PATCH = 4  # pixels
OF_PATCHES = re.compile(r"(^|[._])patch")
GUESSED_PREFIXES = (0, 1, 2)  # class and distillation tokens
MOST_OTHERS = 3  # rows beside the cells whose place a run may show
LINE_OR_GRID = (
    "its rows may be positions in a line or the cells of a grid; in one file, --length or --grid says which, and "
    "--old-grid that of a grid that is not square"
)
A_GUESS = "found by its name and shape alone; a resize may have to name it with --table (table=...)"
NO_TYPE = (
    "found by its name and shape alone, because neither config.json nor the keys say what model this is; pass "
    "--model-type (model_type=...), such as --model-type bert, or name it with --table (table=...)"
)


def read_by_model(
    tensor: FoundTable, model: nn.Module, name: str, responses: Sequence[Response], known: Any
) -> FoundTable:
    """Returns a tensor of the files as a PositionTable if the built model explains its rows, otherwise with a doubt.

    model: a model on the meta device. name: the tensor's name in this model. responses: the config fields that change
    the tensor's shape, with the shapes before and after each field was doubled. known: the config object.
    """
    field, before, after = responses[0]
    around = section(known.to_dict(), field.path[:-1])
    table = replace(tensor, parameter=name, found_by="config", field=field)
    owner = model.get_submodule(parent(name))
    if len(responses) == 1 and len(before) > 1 and (why := why_fixed(table, responses[0], around)):
        return replace(table, fixed=True, in_buckets=True).doubted(why)
    if is_layer(owner):
        return table.doubted(f"it is a weight of {type(owner).__name__}, and not a table of positions")
    if len(responses) > 1 or role_of(field, name, around) is not None or limited(responses):
        return table_with_axes(table, model, name, responses, known)
    ones = (1,) * (len(before) - 2)
    if len(after) != len(before) or before[:-2] != ones or after[:-2] != ones or before[-1] != after[-1]:
        return table.doubted(f"its shape changes from {before} to {after}; in a table (rows, width), only rows change")
    layout = line_layout(model, name, (before[-2], after[-2]), field, around)
    return table.doubted(layout) if isinstance(layout, str) else table.read_by(layout)


def why_fixed(table: FoundTable, response: Response, around: Config) -> str:
    """Returns why no length resizes a table with one row per distance bucket (T5, arXiv:1910.10683); "" for any other
    table."""
    (field, before, after), name = response, response[0].path[-1]
    gained, *others = (new - old for old, new in zip(before, after, strict=True) if new != old)
    if not BUCKETS.search(name) or others or not isinstance(field.value, int) or gained % field.value:
        return ""
    limit = next((name for name in REACHES if type(around.get(name)) is int), "")
    reach = f" from {around[limit]} tokens or frames on ({limit})" if limit else " beyond them"
    remedy = "Another number of buckets: --buckets (buckets=...)"
    return (
        f"its {gained} rows are buckets of distances ({field}): near distances have a bucket each, far ones share one, "
        f"and all distances{reach} share the last. No length changes them, so they need no resize: a longer input "
        f"reads the same rows. {remedy if gained == field.value else 'No option changes them'}"
    )


def table_with_axes(
    table: FoundTable, model: nn.Module, name: str, responses: Sequence[Response], known: Any
) -> FoundTable:
    """Returns a table with axes of images, videos, sounds or differences, or its tensor marked as not understood."""
    config = known.to_dict()
    found = explain(name, responses, config)
    if isinstance(found, str):
        return table.doubted(found)
    rows = others_in(table, model, found, section(config, responses[0][0].path[:-1]))
    if isinstance(rows, str):
        return table.doubted(rows)
    prefix, tail = rows
    layout = replace(found.layout, prefix=prefix, tail=tail)
    method = family_of(section(config, responses[0][0].path[:-1])).method_for(layout)
    return replace(table.read_by(layout, cells=found.cells), method=method)


def others_in(table: FoundTable, model: nn.Module, found: Explanation, around: Config) -> Size | str:
    """Returns the numbers of rows before and after the cells of a table, or the reason why they are unknown.

    Class tokens come first unless ``tables/families.py`` says otherwise. For rows that belong to no token,
    ``checkpoints/families.json`` states the side, or else runs of the model try both.
    """
    others, family, name = found.others, family_of(around), table.parameter
    if any(axis.relative for axis in found.layout.axes):
        if others in (0, family.differences.tail):
            return 0, others
        return f"it has {others} rows besides its differences, and it is unknown what they are"
    tokens = class_tokens(model, name) or tokens_around(model, name, CLASS_TOKEN) if others else 0
    behind = tokens_around(model, name, DETECTION_TOKENS) if others > tokens else 0
    if others == tokens:
        return (0, others) if family.grid.tail else (others, 0)
    if others == tokens + behind:
        return tokens, behind
    if others > tokens and others == tokens + tokens_around(model, name, REGISTERS):
        return others, 0
    cells = " x ".join(str(axis.size) for axis in found.layout.axes)
    why = ""
    if tokens == 0 and others <= MOST_OTHERS:
        sides = (others, 0), (0, others)
        said = rows_said(model, name)
        if len(known := [each for each in sides if rows_in_words(*each) in said]) == 1:
            return known[0]
        for prefix, tail in sides:
            here = table.read_by(replace(found.layout, prefix=prefix, tail=tail), cells=found.cells)
            if not (problem := why_unread(model, here)):
                return prefix, tail
            why = why or f": {problem}"
    rows, count = (f"1 {one}" if n == 1 else f"{n} {one}s" for n, one in ((others, "row"), (tokens, "class token")))
    return f"it has {rows} besides its {cells} cells, but the model has {count}, and no run shows what they are{why}"


def line_layout(
    model: nn.Module, name: str, rows: tuple[int, int], field: ConfigField, around: Config
) -> TableLayout | str:
    """Returns the layout of positions in a line, or the reason why the rows cannot be explained.

    rows: the numbers of rows before and after the field was doubled. around: the section of the config that contains
    the field, with all defaults.
    """
    before, after = rows
    if not isinstance(field.value, int):
        return f"{field} gives two sizes without a patch_size"
    if after - before != field.value:
        grown = f"{after - before} rows if {field} grows by {field.value}"
        return f"it gains {grown}, so its rows are not single positions"
    if pair(around.get("patch_size")) is not None and not LINE_LENGTH.search(field.path[-1]):
        return f"its length is {field}, in a config with a patch_size, so it is a grid with unknown sides"
    path = parent(name)
    shown = shown_layout(model.get_submodule(path), model.get_submodule(parent(path)))
    beyond, family = before - field.value, family_of(around)
    if beyond == 0 and shown is None and family.after_padding:
        return family.line_in(around)
    if beyond == 0 or (shown is not None and beyond == shown.reserved):
        return shown or TableLayout()
    known = family.line
    if beyond == known.reserved and known.pad_row is None:
        return known
    return f"it has {beyond} more rows than {field}={field.value}, and it is unknown whether they are first or last"


def class_tokens(model: nn.Module, name: str) -> int:
    """Counts the class and distillation tokens in the nearest module around a tensor that holds any directly."""
    if type(model.get_submodule(parent(name))).__name__ in POOLS:
        return 1
    return tokens_around(model, name, CLASS_TOKENS, recurse=False)


def tokens_around(model: nn.Module, name: str, pattern: re.Pattern[str], *, recurse: bool = True) -> int:
    """Counts the tokens whose names match ``pattern`` in the nearest module around a tensor that holds any, directly
    or, with ``recurse``, at any depth. CrossViT numbers its branches; only tokens of the tensor's branch count."""
    branch = BRANCH.findall(name)
    while name:
        name = parent(name)
        inside = model.get_submodule(name).named_parameters(recurse=recurse)
        named = ((token, each) for each, token in inside if pattern.search(each))
        tokens = [token for token, each in named if BRANCH.findall(each) in ([], branch)]
        if tokens:
            return sum(token.numel() // token.shape[-1] for token in tokens)
    return 0


def known_tables(config: Config, tensors: Tensors) -> Iterator[FoundTable]:
    """Yields the tables that ``tables/families.py`` lists for the model's family, if their length is known."""
    family = family_of(config)
    for known in family.tables:
        key = next((key for key in (known.key, f"{family.base}.{known.key}") if key in tensors), None)
        if key is None:
            continue
        value = next(filter(None, (at(config, path) for path in known.fields)), known.default)
        field = ConfigField(known.fields[0], value if isinstance(value, int) else pair(value) or 0)
        table = replace(found_tensor(tensors, key), found_by="family", field=field)
        if known.why:
            yield replace(table, fixed=known.why == COMPUTED).doubted(known.why)
        elif known.area and isinstance(value, int):
            side = math.isqrt(value)
            read = judged(table, TableLayout().on_grid(side, side), side * side)
            yield replace(read, cells=(Cells(field, area=True),) * 2) if isinstance(read, PositionTable) else read
        elif known.patch or known.kernel:
            kernel = list(tensors[known.kernel].shape) if known.kernel in tensors else []
            size, patch = pair(value), pair(at(config, known.patch) if known.patch else kernel[2:])
            if size is not None and patch is not None and min(size) >= min(patch) > 0:
                grid = size[0] // patch[0], size[1] // patch[1]
                layout = known.layout or TableLayout(prefix=min(max(table.rows - math.prod(grid), 0), 2))
                yield judged(table, layout.on_grid(*grid), math.prod(grid), patch)
        elif known.layout is not None and isinstance(value, int):
            layout = family.line_in(config) if family.after_padding else with_last_row(known.layout, key, tensors)
            yield judged(table, layout, value - layout.front if family.after_padding else value)


def all_listed(config: Config, tensors: Tensors) -> tuple[PositionTable, ...]:
    """Returns a model's tables if its family lists all of them; () if the files hold other tables or do not fit."""
    family = family_of(config)
    if not is_ordinary(config, tables=len(family.tables)):
        return ()
    found = tuple(known_tables(config, tensors))
    tables = tuple(table for table in found if isinstance(table, PositionTable))
    complete = len(tables) == len(family.tables) and isinstance(config.get("model_type"), str)
    others = {guess.key for guess in guessed_tables(config, tensors)} - {table.key for table in tables}
    if not complete or others:
        return ()
    fields = [table.field.path for table in tables if table.field is not None]
    widths = [section(config, path[:-1]).get(family.width) for path in fields]
    bands = {tensor.shape[1] for key, tensor in tensors.items() if key.endswith(SOUND_INPUT)}
    if widths != [table.width for table in tables] or bands - {config.get("num_mel_bins")}:
        return ()
    aliased = ALIAS in config and (ALIAS,) not in fields  # in GPT-2, it overrides n_positions
    unpadded = family.after_padding and type(config.get("pad_token_id", 0)) is not int
    frozen = (table for table, known in zip(tables, family.tables, strict=True) if known.sinusoidal)
    learned = any(not looks_sinusoidal(table.values(tensors)) for table in frozen)
    return () if aliased or unpadded or learned else tables


def at(config: Config, path: FieldPath) -> Any:
    """Returns the value of a field. [channels, height, width] becomes [height, width], or one number if equal."""
    value = section(config, path[:-1]).get(path[-1])
    if isinstance(value, list) and len(value) == 3:
        value = value[1] if value[1] == value[2] else value[1:]
    return value


def judged(table: FoundTable, layout: TableLayout, length: int, patch: Size | None = None) -> FoundTable:
    """Returns the table with ``layout``, or marked as doubtful if its shape does not fit ``length``.

    A mismatch does not mean that the config is wrong: in some timm models, the number of rows differs from the number
    of patches that the first convolution produces.
    """
    rows = layout.front + length + layout.tail
    if table.rows == rows and len(table.shape) <= 3 and all(size == 1 for size in table.shape[:-2]):
        cells = (Cells(table.field, at, size, size) for at, size in enumerate(patch or ()) if table.field is not None)
        return table.read_by(layout, cells=tuple(cells))
    value = table.field and table.field.value
    doubt = f"its shape is {table.shape}, but {table.field}={value} means {rows} rows"
    return replace(table, found_by="name").doubted(doubt)


def projection_beside(key: str, tensors: Tensors) -> str | None:
    """Returns the key of the convolution that makes a table's patches: beside the table, or further out with "patch" in
    its name, or the only one of the file, in a module around the table. None if unknown, as after several convolutions
    (hybrids of a ResNet and a transformer) and in models of several stages with patches of their own (PVT)."""
    kernels = {name: each.shape[-2:] for name, each in tensors.items() if len(each.shape) in (4, 5)}
    above, named = parent(key), ""
    while True:
        near = (name for name in kernels if name.startswith(above) and not is_table_name(name))
        inside = {name: name[len(above) :].lstrip(".") for name in near}
        large = (rest for name, rest in inside.items() if min(kernels[name]) > 1 and named in rest)
        parts = list(dict.fromkeys(rest.partition(".")[0] for rest in large))
        part = next((each for each in parts if "patch" in each), parts[0] if parts else "")
        stages = [each for each in parts if NUMBER.sub("", each) == NUMBER.sub("", part)]
        sizes = {kernels[name] for name, rest in inside.items() if rest.partition(".")[0] in stages}
        if len(sizes) > 1 and sum(is_table_name(each) and parent(each) == parent(key) for each in tensors) > 1:
            return None
        if part or not above:
            break
        above, named = parent(above), "patch"
    of_part = [name for name, rest in inside.items() if part and rest.partition(".")[0] == part]
    width = tensors[key].shape[-1]
    linear = any(OF_PATCHES.search(name) and tuple(each.shape[:-1]) == (width,) for name, each in tensors.items())
    if not part and not linear:  # conv_proj in torchvision
        of_part = [name for name in inside if min(kernels[name]) > 1]
        around = (key.startswith(parent(parent(name))) for name in of_part)
        sizes = {(*tensors[name].shape[:2], min(kernels[name]) >= LEAST_PATCH) for name in of_part}
        of_part *= all(around) and sizes <= {(width, colours, True) for colours in (1, 3, 4)}
    return of_part[0] if len(of_part) == 1 else None


def guessed_tables(config: Config, tensors: Tensors) -> Iterator[FoundTable]:
    """Yields tables that are guessed from names and shapes alone. The doubt of each table states this."""
    others = any(is_table_name(key) and len(each.shape) > 1 and each.shape[-2] > 1 for key, each in tensors.items())
    for key, tensor in tensors.items():
        is_alone = tensor.shape[-2:-1] > (1,) or not others  # columns (N, 1, D) count only if nothing else is found
        if is_table_name(key) and is_alone and has_rows(tensor):
            guess = guessed(found_tensor(tensors, key), config, tensors)
            untyped = config and guess.doubt == A_GUESS and not is_typed(config)
            yield replace(guess, doubt=NO_TYPE) if untyped else guess


def has_rows(tensor: AnyTensor) -> bool:
    shape = tuple(tensor.shape)  # (N, D), (1, N, D) or (N, 1, D)
    is_matrix = len(shape) in (2, 3) and shape[-1] > 1 and sum(size > 1 for size in shape) == 2
    return is_matrix and dtype_name(tensor).startswith(("F", "BF"))


def guessed(table: FoundTable, config: Config, tensors: Tensors) -> FoundTable:
    """Guesses whether rows are positions in a line or cells of a grid. (1, N, D) is a grid in models of images, and a
    line in models of texts."""
    *lead, rows, _ = table.shape
    if rows == 1 or not (lead or IN_IMAGE_MODEL.search(table.key)):
        return guessed_line(table, config, tensors)
    grid, line, above = guessed_grid(table), guessed_line(table, config, tensors), table.key
    while above:  # what is nearest to the table decides
        above = parent(above)
        inside = f"{above}." if above else ""
        shapes = {key: tuple(each.shape) for key, each in tensors.items() if key.startswith(inside)}
        kernels = {key: shape for key, shape in shapes.items() if len(shape) in (4, 5) and shape[0] > 1}
        embeds = any(min(shape[-2:]) > 1 or "embed" in key for key, shape in kernels.items())
        if embeds or any(map(OF_IMAGES.search, shapes)):
            return grid
        if any(len(shape) == 2 and OF_TEXTS.search(key) for key, shape in shapes.items()):
            return line
    values = values_of(tensors[table.key]).reshape(rows, -1)
    for guess in (grid, line):
        if isinstance(guess, PositionTable) and recomputed(values, guess.layout, guess.layout, guess.length):
            return guess
    return table.doubted(LINE_OR_GRID)


def guessed_line(table: FoundTable, config: Config, tensors: Tensors) -> PositionTable:
    layout = with_last_row(family_of(config).line_in(config), table.key, tensors)
    line = table.read_by(layout, doubt=A_GUESS)
    lengths = {line.rows, line.rows - layout.front}
    fields = [each for each in size_fields(config) if each.value in lengths]
    return replace(line, field=fields[0] if len(fields) == 1 else None)


def with_last_row(layout: TableLayout, key: str, tensors: Tensors) -> TableLayout:
    """Returns the layout with a last row for a text's class token, if the files hold one beside the table (CoCa)."""
    return replace(layout, tail=1) if f"{parent(key)}.{LAST_TOKEN}".lstrip(".") in tensors else layout


def guessed_grid(
    table: FoundTable, prefixes: Iterable[int] = GUESSED_PREFIXES, tail: int = 0, grids: Iterable[Size] = ()
) -> FoundTable:
    """Returns a table on one of the grids, or else on a square, after one of these numbers of rows."""
    cells = [(prefix, max(table.rows - prefix - tail, 0)) for prefix in prefixes]
    squares = [(prefix, (side, side)) for prefix, count in cells if (side := math.isqrt(count)) > 1]
    for prefix, grid in (*((prefix, grid) for grid in grids for prefix, _ in cells), *squares):
        if math.prod(grid) == dict(cells)[prefix]:
            return table.read_by(TableLayout(prefix=prefix, grid=grid, tail=tail), doubt=A_GUESS)
    return table.doubted(
        "the grid of its rows is unknown, and their number is not a square; in one file, --old-grid says it, or "
        "--reserved 0, with --length, that they are positions in a line"
    )


def found_tensor(tensors: Tensors, key: str) -> FoundTable:
    return FoundTable(key=key, shape=tuple(tensors[key].shape), dtype=dtype_name(tensors[key]))
