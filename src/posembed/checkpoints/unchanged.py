"""Says why tables stay as they are that no size in a config changes: which need no resize, and what the others are."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from posembed.checkpoints.found import FoundTable, pair
from posembed.checkpoints.rebuild import Shape, models_around, shapes_of
from posembed.checkpoints.trials.inputs import IMAGE_SIZES, image_inputs, inputs_of
from posembed.checkpoints.trials.small_copies import floats_in, undisturbed
from posembed.tables.modules import is_table_name, parent

UNCHANGED = "no length or image size in config.json changes its shape"
NO_NEED = "so it needs no resize"
SAME_ROWS = f"{UNCHANGED}. The model reads larger images with the same rows, {NO_NEED}"
OF_TIMM = (
    f"{UNCHANGED}: timm builds this part of the model, and config.json gives no size of it. posembed resizes such "
    "tables in models of timm alone"
)
OF_WINDOW = re.compile(r"(^|\.)relative_position_bias_table$")
BUFFER = f"{UNCHANGED}: it is a buffer, which the model does not train"
# What the rows of some tables stand for. {rows} is replaced by their number.
MEANINGS = (
    (
        re.compile(r"(^|\.)char_position_embeddings\.weight$"),  # CANINE
        "{unchanged}: num_hash_buckets gives its {rows} rows, and also those of the hash tables of characters. With "
        "another number, every character would be hashed to other rows of these tables, whose rows have no order",
    ),
    (
        re.compile(r"(^|\.)(row|column)_embeddings\.weight$"),  # DETR
        "{unchanged}: its {rows} rows are a number in the model's code, so the model could not load a resized table. "
        "Each row or column of an image's feature map reads one of them, so maps of up to {rows} x {rows} cells need "
        "no resize",
    ),
    (
        re.compile(r"(^|\.)(pre|post)_tile_positional_embedding\.embedding\.weight$"),  # Mllama
        "{unchanged}: each row stands for a ratio of width to height, and its columns for the tiles of an image. No "
        "image size changes them, {no_need}, and ratios have no order",
    ),
    (
        re.compile(r"(^|\.)position_embeddings\.weights\.\d+$"),  # Reformer, with more than two axes
        "axial_pos_shape gives its size. Only two axes are resized, blocks and the places in a block",
    ),
    (
        re.compile(r"(^|\.)img_temporal_embedding\.\d+$"),  # GIT
        "each such tensor is the row of one image of a video. num_image_with_embedding gives their number, and a "
        "resize adds no tensors to a file, so keep the number of images",
    ),
    (
        re.compile(r"(^|\.)memory_temporal_positional_encoding$"),  # SAM 2
        "{unchanged}: its rows stand for the frames that the model remembers (num_maskmem), and the last row for "
        "frames with prompts. A video of any length reads the same rows, {no_need}",
    ),
)


def why_unchanged(table: FoundTable, model: nn.Module, name: str) -> str:
    """Returns why a table is not resized that no config field changes. name: its name in the model, or ""."""
    for pattern, words in MEANINGS:
        if pattern.search(table.key):
            return words.format(unchanged=UNCHANGED, no_need=NO_NEED, rows=table.rows)
    if name in dict(model.named_buffers()):
        return BUFFER
    if name and reads_larger_images(model, name):
        return SAME_ROWS
    return OF_TIMM if name and is_in_timm(model, name) else UNCHANGED


def is_in_timm(model: nn.Module, name: str) -> bool:
    """Returns whether timm's code holds a parameter of a model."""
    return type(model.get_submodule(parent(name))).__module__.partition(".")[0] == "timm"


def needs_no_resize(doubt: str) -> bool:
    return NO_NEED in doubt


def other_tables(model: nn.Module, names: Mapping[str, str], changing: Iterable[str]) -> list[str]:
    """Returns the keys of tensors that have a table's name, but neither the shape of rows nor a size that changes.

    names: the name of each key in the model.
    """
    shapes = shapes_of(model)

    def is_table(name: str, shape: Shape) -> bool:
        if OF_WINDOW.search(name) and is_in_timm(model, names[name]):
            return True
        named = is_table_name(name) and len(shape) > 3 and sum(size > 1 for size in shape) > 1
        return named or any(pattern.search(name) and len(shape) > 2 for pattern, _ in MEANINGS)

    return [key for key, name in names.items() if key not in changing and is_table(key, shapes[name])]


def reads_larger_images(model: nn.Module, name: str) -> bool:
    """Returns whether a model reads images of twice its size with a parameter of the same shape: a model that is built
    for such images, or else the model as it is.

    It runs on the meta device, which computes shapes. A lookup by number, whose numbers may be too large for a table,
    shows nothing there.
    """
    if isinstance(model.get_submodule(parent(name)), nn.Embedding):
        return False
    for path in models_around(model, name):
        part: Any = model.get_submodule(path)
        inner, larger = name.removeprefix(f"{path}."), copy.deepcopy(part.config)
        for each in IMAGE_SIZES:
            if (size := pair(getattr(larger, each, None))) is not None:
                whole = isinstance(getattr(larger, each), int)
                setattr(larger, each, 2 * size[0] if whole else type(getattr(larger, each))(2 * side for side in size))
        sizes = [size for each in IMAGE_SIZES if (size := pair(getattr(larger, each, None))) is not None]
        for config in (larger, copy.deepcopy(part.config)):
            try:
                with undisturbed(), torch.device("meta"):
                    built = type(part)(config).eval()
                    rows = built.get_parameter(inner)
                    same = rows.shape == part.get_parameter(inner).shape
                    tries = (inputs_of(built) if config is larger else image_inputs(built, size) for size in sizes[:1])
                    if same and any(is_read(built, rows, each) for each in chain.from_iterable(tries)):
                        return True
            except Exception:  # each model raises its own errors
                continue
    return False


def is_read(model: nn.Module, rows: nn.Parameter, inputs: Mapping[str, Any]) -> bool:
    outputs = [each.sum() for each in floats_in(model(**inputs))]
    (read,) = torch.autograd.grad(outputs, rows, allow_unused=True)
    return read is not None
