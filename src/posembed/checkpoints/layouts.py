"""How the rows of a table are read, from what its model's config and modules say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from posembed.checkpoints.found import FieldPath, FieldValue, NotUnderstood
from posembed.tables.layout import TableLayout

# Not the largest image, nor that of an earlier training, whose table a model may tile or interpolate.
IMAGE_SIZE = re.compile(r"^(image_size|img_size|input_size)$")
LINE_LENGTH = re.compile(
    r"position_embeddings|n_positions|seq|max_len|max_text|context|(target|source)_positions|block"
)
CLASS_TOKENS = re.compile(r"cls|class|dist")

# Tables two rows longer than their field whose modules do not say that the two stand in front: they count
# positions from 2, after fairseq.
TWO_ROWS_IN_FRONT = {"nystromformer", "yoso", "mra"}
# Models that put the class token behind the patches.
CLASS_TOKEN_LAST = {"llama4", "llama4_vision_model"}


def is_image_size(field: FieldPath, section: Mapping[str, Any]) -> bool:
    """Whether a field, in its section of a config, gives the side of an image that is cut into patches."""
    return bool(IMAGE_SIZE.search(field[-1])) and patch_size(section) is not None


def patch_size(section: Mapping[str, Any]) -> tuple[int, int] | None:
    return pair(section.get("patch_size"))


def pair(value: Any) -> tuple[int, int] | None:
    """16 -> (16, 16), [16, 8] -> (16, 8), None for what is no size."""
    if type(value) is int:
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    return None


def line_layout(
    model: nn.Module, name: str, rows: tuple[int, int], field: FieldPath, value: int, section: Mapping[str, Any]
) -> TableLayout:
    """The layout of positions in a line.

    model: on meta. name: the table's parameter in it. rows: before and after the field was doubled.
    """
    before, after = rows
    if after - before != value:
        grown = f"{after - before} rows more for {value} more in {'.'.join(field)}"
        raise NotUnderstood(f"it gets {grown}, so its rows are not one position each")
    if patch_size(section) is not None and not LINE_LENGTH.search(field[-1]):
        raise NotUnderstood(f"its length is {'.'.join(field)}, beside a patch_size: a grid whose sides are not known")
    module = parent(model, name)
    offset = getattr(module, "offset", None)
    padding = getattr(module, "padding_idx", None)
    beyond = before - value
    if type(offset) is int and offset > 0 and beyond in (0, offset):  # BART, OPT
        return TableLayout(reserved=offset, pad_row=offset - 1)
    if beyond == 2 and section.get("model_type") in TWO_ROWS_IN_FRONT:
        return TableLayout(reserved=2)
    if beyond != 0:
        raise NotUnderstood(f"it has {beyond} rows beyond {'.'.join(field)}={value}; in front or at the end?")
    # RoBERTa: the module around the embedding counts positions from its padding index. Without that (LXMERT), a
    # padding_idx only means that row 0 gets no gradient.
    if padding is not None and getattr(parent(model, name.rpartition(".")[0]), "padding_idx", None) == padding:
        return TableLayout.roberta(padding)
    return TableLayout()


def grid_layout(
    model: nn.Module,
    name: str,
    rows: tuple[int, int],
    field: FieldPath,
    value: FieldValue,
    section: Mapping[str, Any],
) -> TableLayout:
    """The layout of positions on a grid of patches; arguments as for ``line_layout``."""
    patch, size = patch_size(section), pair(value)
    assert patch is not None
    assert size is not None
    height, width = size[0] // patch[0], size[1] // patch[1]
    doubled = (2 * size[0] // patch[0]) * (2 * size[1] // patch[1])
    extra = rows[0] - height * width
    if extra < 0 or rows[1] - doubled != extra or not height * width:
        raise NotUnderstood(f"its {rows[0]} rows are not the {height} x {width} patches that {'.'.join(field)} gives")
    tokens = class_tokens(model, name) if extra else 0
    if extra != tokens:
        raise NotUnderstood(f"it has {extra} rows beside its {height} x {width} patches, but {tokens} class tokens")
    if extra and section.get("model_type") in CLASS_TOKEN_LAST:
        return TableLayout(tail=extra, grid=(height, width))
    return TableLayout(prefix=extra, grid=(height, width))


def class_tokens(model: nn.Module, name: str) -> int:
    """How many class and distillation tokens stand beside the patches, in the nearest module that has any."""
    while name:
        name = name.rpartition(".")[0]
        own = model.get_submodule(name).named_parameters(recurse=False)
        tokens = [token for token_name, token in own if CLASS_TOKENS.search(token_name)]
        if tokens:
            return sum(token.numel() // token.shape[-1] for token in tokens)
    return 0


def parent(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])
