"""How the rows of a table are read, from what its model's config and modules say."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from posembed.checkpoints.found import Config, ConfigField, NotUnderstood, Size
from posembed.tables.families import family_of
from posembed.tables.layout import TableLayout

# Neither the largest image nor that of an earlier training, whose table a model may tile or interpolate.
IMAGE_SIZE = re.compile(r"^(image_size|img_size|input_size)$")
LINE_LENGTH = re.compile(
    r"position_embeddings|n_positions|seq|max_len|max_text|context|(target|source)_positions|block"
)
CLASS_TOKENS = re.compile(r"cls|class|dist")


def pair(value: Any) -> Size | None:
    """16 -> (16, 16), [16, 8] -> (16, 8), None for anything else."""
    if type(value) is int:
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    return None


def patch_size(field: ConfigField, section: Config) -> Size | None:
    """Returns the size of a patch if the field gives the side of an image that is cut into patches."""
    return pair(section.get("patch_size")) if IMAGE_SIZE.search(field.path[-1]) else None


def line_layout(model: nn.Module, name: str, rows: tuple[int, int], field: ConfigField, section: Config) -> TableLayout:
    """Returns the layout of positions in a line. Raises NotUnderstood for rows that nothing explains.

    model: on meta. name: the table's parameter in it. rows: before and after the field was doubled. section: the part
    of the config, all defaults filled in, that the field is in.
    """
    before, after = rows
    if not isinstance(field.value, int):
        raise NotUnderstood(f"{field} gives two sizes without a patch_size")
    if after - before != field.value:
        grown = f"{after - before} rows more for {field.value} more in {field}"
        raise NotUnderstood(f"it gets {grown}, so its rows are not one position each")
    if pair(section.get("patch_size")) is not None and not LINE_LENGTH.search(field.path[-1]):
        raise NotUnderstood(f"its length is {field}, in a config with a patch_size: a grid whose sides are not known")
    module = parent(model, name)
    offset = getattr(module, "offset", None)
    padding = getattr(module, "padding_idx", None)
    beyond = before - field.value
    if type(offset) is int and offset > 0 and beyond in (0, offset):  # BART, OPT
        return TableLayout(reserved=offset, pad_row=offset - 1)
    known = family_of(section).line
    if beyond and beyond == known.reserved and known.pad_row is None:
        return known
    if beyond != 0:
        raise NotUnderstood(f"it has {beyond} rows beyond {field}={field.value}; in front or at the end?")
    # RoBERTa: the module around the embedding counts positions from its padding index. Without that (LXMERT), a
    # padding_idx only means that row 0 gets no gradient.
    if padding is not None and getattr(parent(model, name.rpartition(".")[0]), "padding_idx", None) == padding:
        return TableLayout.roberta(padding)
    return TableLayout()


def grid_layout(
    model: nn.Module, name: str, rows: tuple[int, int], field: ConfigField, section: Config, patch: Size
) -> TableLayout:
    """Returns the layout of positions on a grid of patches. Arguments and errors as for ``line_layout``."""
    sides = pair(field.value) or (0, 0)
    height, width = sides[0] // patch[0], sides[1] // patch[1]
    doubled = (2 * sides[0] // patch[0]) * (2 * sides[1] // patch[1])
    extra = rows[0] - height * width
    if extra < 0 or rows[1] - doubled != extra or not height * width:
        raise NotUnderstood(f"its {rows[0]} rows are not the {height} x {width} patches that {field} gives")
    tokens = class_tokens(model, name) if extra else 0
    if extra != tokens:
        raise NotUnderstood(f"it has {extra} rows besides its {height} x {width} patches, but {tokens} class tokens")
    behind = bool(family_of(section).grid.tail)
    return TableLayout(prefix=0 if behind else extra, grid=(height, width), tail=extra if behind else 0)


def class_tokens(model: nn.Module, name: str) -> int:
    """Counts the class and distillation tokens in the nearest module that has any."""
    while name:
        name = name.rpartition(".")[0]
        own = model.get_submodule(name).named_parameters(recurse=False)
        tokens = [token for token_name, token in own if CLASS_TOKENS.search(token_name)]
        if tokens:
            return sum(token.numel() // token.shape[-1] for token in tokens)
    return 0


def parent(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])
