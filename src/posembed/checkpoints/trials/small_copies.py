"""Builds small copies of a model, and runs them without disturbing the caller."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import ConfigField, PositionTable, TableSize
from posembed.checkpoints.rebuild import LAYERS, class_of, is_of_timm, last_line, quiet
from posembed.tables.layout import TableLayout

FEW = 2  # layers, heads
FEW_FRAMES = 4  # of a video, if no changed table depends on their number
FEW_TOKENS = 1024  # rows of a vocabulary
# Cells along an axis, before and after, of copies whose true size would take too long. Some models have blocks of 8.
FEW_CELLS = (12, 16), (16, 32)
MOST_CELLS = 1024  # the maximum number of grid cells to compare with all patches
MOST_CELLS_OF_TIMM = 4096  # whose stages and windows fit few sizes of images
MOST_NUMBERS = 64_000_000  # the maximum number of values in a copy or an image: 256 MB
TOLERANCE = 1e-4
SILENT = 1e-6  # initial weights below this let nothing through
LOUDER = 10  # the factor by which initial weights are multiplied
LAYER_NUMBERS = "intermediate_layers_indices"  # of Mllama, which returns the outputs of these layers
PRETRAINED = "pretrain_image_size"
HEADS = re.compile(r"heads$|^n_head$")
FEED_FORWARD = re.compile(r"intermediate_size$|ffn_dim$")


class NotTried(Exception):  # noqa: N818 - never leaves these files
    """Raised if no small copy of a model could be run. The message gives the reason."""


class TooLarge(NotTried):
    """Raised if a small copy would take too much memory."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Runs models on the CPU with gradients and a fixed seed, without changing the caller's modes and generators."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.device("cpu"), quiet():
        torch.default_generator.manual_seed(0)  # leaves the generators of other devices alone
        yield


def small_copy(
    model: nn.Module, *, narrow: bool, few_layers: bool = True, settings: Sequence[tuple[ConfigField, Any]] = ()
) -> nn.Module:
    """Builds a model of the same class on the CPU with few tokens and, if asked for, few layers and few heads.

    settings: config fields of the whole model, and other values of them.
    """
    config: Any = copy.deepcopy(model.config)
    make_small(config, narrow=narrow, few_layers=few_layers)
    for field, value in settings:
        set_in(config, field, value)
    kind: Any = class_of(config) if is_of_timm(config) else type(model)
    with torch.device("meta"):
        sketch = kind(copy.deepcopy(config))
    if sum(tensor.numel() for tensor in (*sketch.parameters(), *sketch.buffers())) > MOST_NUMBERS:
        raise TooLarge(f"{type(model).__name__} is too large to be tried")
    small: nn.Module = kind(config).float().eval()
    for parameter in small.parameters():
        # Gates and scales of zero would hide which rows are read, as would DeepSeek-OCR-2's initial weights of 1e-10.
        if parameter.numel() and parameter.abs().amax() < SILENT:
            nn.init.normal_(parameter, std=0.02)
            if parameter.numel() == 1:  # gradients behind a gate keep their signs
                parameter.data.abs_()
    return small


def set_in(config: Any, field: ConfigField, value: Any) -> None:
    """Sets a field of the whole model's config in the config object of a part of the model."""
    for start in range(len(field.path)):
        section = config
        for name in field.path[start:-1]:
            section = getattr(section, name, None)
        if hasattr(section, field.path[-1]):
            setattr(section, field.path[-1], value)
            return


def make_small(config: Any, *, narrow: bool, few_layers: bool = True) -> None:
    """Shrinks a config object and its nested configs in place. Lengths and image sizes stay the same."""
    if is_of_timm(config):
        config.args |= config.few_layers if few_layers else {}
        return
    from transformers import PretrainedConfig

    numbers = [(name, value) for name, value in vars(config).items() if type(value) is int]
    heads = next((getattr(config, name, None) for name in ("num_attention_heads", "num_heads")), None)
    width = getattr(config, "hidden_size", None)
    narrow_width = None
    if narrow and type(heads) is type(width) is int and heads > FEW:
        narrow_width = config.hidden_size = width // heads * FEW
    for name, value in numbers:
        most = value
        if LAYERS.search(name) and value > FEW:
            if not few_layers:
                continue
            most = FEW
            for other, items in list(vars(config).items()):
                if isinstance(items, list | tuple) and len(items) == value:  # a list with an item per layer
                    setattr(config, other, items[:FEW])
        elif narrow and HEADS.search(name):
            most = FEW
        elif narrow_width and FEED_FORWARD.search(name):
            most = 4 * narrow_width
        elif name.endswith(("vocab_size", "_token_id")):
            most = FEW_TOKENS - name.endswith("_token_id")
        if value > most:
            setattr(config, name, most)
    if few_layers and isinstance(numbers_of := getattr(config, LAYER_NUMBERS, None), list | tuple):
        setattr(config, LAYER_NUMBERS, [min(number, FEW - 1) for number in numbers_of])
    if isinstance(getattr(config, "mask_ratio", None), float):
        config.mask_ratio = 0.0  # MAE's encoder drops most patches
    before = getattr(getattr(config, "text_config", None), "hidden_size", None)
    for name, inner in list(vars(config).items()):
        if isinstance(inner, PretrainedConfig):
            make_small(inner, narrow=narrow, few_layers=few_layers)
            if name == "vision_config" and few_layers and isinstance(inner.to_dict().get("depths"), list | tuple):
                inner.depths = [min(depth, FEW) for depth in inner.depths]
    images = getattr(config, "vision_config", None)
    if before is not None and getattr(images, "projection_dim", None) == before:  # Florence-2 makes tokens of images
        cast(Any, images).projection_dim = config.text_config.hidden_size


def copies(
    models: Sequence[nn.Module],
    target: Target,
    table: PositionTable,
    *,
    narrow: bool,
    few_layers: bool,
    few: tuple[int, int] | None = None,
) -> list[nn.Module]:
    """Builds small copies of the old and the new model. few: cells along an axis of images, before and after; None for
    the true sizes, unless they have many cells."""
    of_timm = is_of_timm(models[0].config)
    settings: list[list[tuple[ConfigField, Any]]] = []
    if of_timm and narrow and has_many_cells(target, MOST_CELLS_OF_TIMM):
        settings = [halved(field, value) for field, value in target.values.items()]
    elif not of_timm and (few is not None or has_many_cells(target)):
        settings = [given for field in target.values if (given := smaller(table, field, few or FEW_CELLS[0]))]
    frames = getattr(cast(Any, models[0]).config, "num_frames", None)
    sized = {field.path[-1] for change in target.changes for field in change.table.fields}
    if type(frames) is int and frames > FEW_FRAMES and "num_frames" not in sized:
        settings.append([(ConfigField(("num_frames",), frames), FEW_FRAMES)] * 2)
    known = {given[0][0]: given for given in settings}
    for field, value in target.values.items():
        if field.path[-1] == PRETRAINED:  # SegGPT takes images of its image_size alone
            image = ConfigField((*field.path[:-1], "image_size"), field.value)
            sides = known.get(field, [(field, field.value), (field, value)])
            settings.append([(image, side) for _, side in sides])
    if of_timm and few_layers:
        for model in models:  # the same layers
            cast(Any, model).config.few_layers = cast(Any, models[0]).config.few_layers
    with undisturbed():
        try:
            made = []
            for model, given in zip(models, zip(*settings, strict=True) if settings else ((), ()), strict=True):
                made.append(small_copy(model, narrow=narrow, few_layers=few_layers, settings=given))
            return made
        except NotTried:
            raise
        except Exception as error:
            raise NotTried(f"{type(models[0]).__name__}: {last_line(error)}") from error


def has_many_cells(target: Target, most: int = MOST_CELLS) -> bool:
    """Returns whether copies are made smaller."""
    return max(change.length for change in target.changes) > most and may_be_smaller(target)


def may_be_smaller(target: Target) -> bool:
    """Returns whether copies may have fewer cells. A limit may not be smaller than a sound's chunks."""
    return not target.of_window and target.limited is None


def in_part(path: str, changes: Iterable[TableSize]) -> dict[str, TableSize]:
    """Returns the sizes of tables by the names that their parameters have in the part of the model at ``path``."""
    return {change.table.parameter.removeprefix(f"{path}."): change for change in changes}


def fitted(layout: TableLayout, table: PositionTable, model: nn.Module, name: str) -> TableLayout:
    """Returns a layout with the columns and the square grid that a table has in a small copy, if it says either.

    table: the table at its true size. name: the name of its parameter in the copy.
    """
    if layout.columns is None and layout.blocks is None:
        return layout
    shape = tuple(model.get_parameter(name).shape)
    if layout.blocks is not None:
        side = math.isqrt(shape[layout.dims[1]])
        return replace(layout, grid=(side * layout.blocks[0], side * layout.blocks[1]), axes=())
    columns = layout.columns or 1
    width = getattr(model.config, "hidden_size", columns)
    count = table.shape[-1] // (table.rows * columns)
    side = math.isqrt(shape[-1] // (count * width) - layout.front - layout.tail)
    return replace(layout, columns=width, grid=(side, side), axes=())


def smaller(table: PositionTable, field: ConfigField, sizes: tuple[int, int]) -> list[tuple[ConfigField, Any]]:
    """Returns a field twice, with two values that give few cells."""
    cells = [each for each in table.cells if each.field == field]
    values = [[each.value(few) + max(each.stride - each.kernel, 0) for each in cells] for few in sizes]
    return [(field, sides[0] if isinstance(field.value, int) else sides) for sides in values if sides]


def halved(field: ConfigField, value: Any) -> list[tuple[ConfigField, Any]]:
    """Returns an image size twice: half of the old value, and half of the new one."""
    return [
        (field, size // 2 if isinstance(size, int) else [side // 2 for side in size]) for size in (field.value, value)
    ]


def random_total(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Returns a random linear function of all finite outputs of a model: MAE's loss over no hidden patches is NaN."""
    outputs = [output for output in floats_in(model(**inputs)) if output.isfinite().all()]
    return torch.stack([(output * torch.randn_like(output)).sum() for output in outputs]).sum()


def floats_in(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor) and outputs.is_floating_point() and outputs.requires_grad:
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)
