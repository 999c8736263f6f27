"""Builds small copies of a model, at its own and at a new size, for the proof of a resize.

The copies have few layers, few heads and few tokens, and fewer cells where full-size images would take too long.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import ConfigField, TableSize, times
from posembed.checkpoints.proof.inputs import MOST_NUMBERS, NotTried, TooLarge
from posembed.checkpoints.sources.base import HALF, Few, quiet
from posembed.checkpoints.sources.configs import source_of
from posembed.checkpoints.sources.hugging_face import part_of
from posembed.tables.layout import IMAGE_AXES
from posembed.words import last_line

FEW_FRAMES = 4  # of a video, if no changed table depends on their number
SILENT = 1e-6  # initial weights below this let nothing through
PRETRAINED = "pretrain_image_size"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer


@dataclass(frozen=True)
class Copies:
    """Small copies of the old and the new model, and the sizes of their tables by the names of parameters."""

    old: nn.Module
    new: nn.Module
    before: Mapping[str, TableSize]
    after: Mapping[str, TableSize]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Runs models on the CPU with gradients and a fixed seed, without changing the caller's modes and generators."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.device("cpu"), quiet():
        torch.default_generator.manual_seed(0)  # leaves the generators of other devices alone
        with torch.enable_grad():
            yield


def copies(
    models: Sequence[nn.Module],
    target: Target,
    changes: Sequence[TableSize],
    path: str,
    *,
    narrow: bool,
    few_layers: bool = True,
    few: Few = None,
) -> Copies:
    """Builds small copies of the old and the new model at ``path``. few: the numbers of cells along an image axis of
    both copies; None for the true sizes. Raises NotTried if a copy cannot be built."""
    settings: dict[ConfigField, list[Any]] = {}  # other values of fields, in both copies
    if few == HALF:
        sizes = {field: (field.value, value) for field, value in target.values.items()}
        settings = {field: [times(size, Fraction(1, 2)) for size in both] for field, both in sizes.items()}
    elif few is not None:
        settings = {field: given for field in target.values if (given := with_few(changes, field, few))}
    for field, value in target.values.items():
        if field.path[-1] == PRETRAINED:  # the copies get images of these sizes
            image = ConfigField((*field.path[:-1], "image_size"), field.value)
            settings[image] = settings.get(field, [field.value, value])
    frames = getattr(models[0].config, "num_frames", None)
    sized = {field.path[-1] for change in target.changes for field in change.table.fields}
    if type(frames) is int and frames > FEW_FRAMES and "num_frames" not in sized:
        settings[ConfigField(("num_frames",), frames)] = [FEW_FRAMES] * 2
    if few_layers:
        source_of(models[0].config).same_layers(models)
    with undisturbed():
        try:
            made = [
                small_copy(
                    model, narrow=narrow, few_layers=few_layers, settings=[(f, v[at]) for f, v in settings.items()]
                )
                for at, model in enumerate(models)
            ]
        except NotTried:
            raise
        except Exception as error:
            raise NotTried(f"{type(models[0]).__name__}: {last_line(error)}") from error
    tables = {}
    for change in changes:
        before, after = change.table.as_it_is(), change
        if any(cells.field in settings for cells in change.table.cells):
            before, after = (change.table.sized({f: v[at] for f, v in settings.items()}) for at in (0, 1))
        tables[change.table.parameter.removeprefix(f"{path}.")] = before, after
    held = {name: sizes for name, sizes in tables.items() if name in dict(made[0].named_parameters())}
    if {NUMBER.sub("*", name) for name in tables} - {NUMBER.sub("*", name) for name in held}:
        raise NotTried("its layer is not among the few of a small copy")
    return Copies(made[0], made[1], *({name: sizes[at] for name, sizes in held.items()} for at in (0, 1)))


def small_copy(
    model: nn.Module, *, narrow: bool, few_layers: bool = True, settings: Sequence[tuple[ConfigField, Any]] = ()
) -> nn.Module:
    """Builds a model of the same class on the CPU with few tokens and, if asked for, few layers and few heads.

    settings: config fields of the whole model, each with its value in the copy.
    """
    config: Any = copy.deepcopy(model.config)
    source = source_of(config)
    source.make_small(config, narrow=narrow, few_layers=few_layers)
    for field, value in settings:
        set_in(config, field, value)
    kind = source.copy_of(model)
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
        section = part_of(config, field.path[start:-1])
        if isinstance(section, dict) and field.path[-1] in section:  # of timm's models
            section[field.path[-1]] = value
            return
        if hasattr(section, field.path[-1]):
            setattr(section, field.path[-1], value)
            return


def cells_to_try(changes: Sequence[TableSize], target: Target, model: nn.Module) -> list[Few]:
    """Returns the numbers of cells along an axis to try, as pairs for the old and the new copy."""
    cells = max(size for change in changes for size in (change.length, change.table.length))
    of_grid = changes[0].table.layout.grid is not None
    smaller = may_be_smaller(changes, target)
    return list(source_of(model.config).cells_to_try(cells if smaller else 0, of_grid=of_grid))


def may_be_smaller(changes: Sequence[TableSize], target: Target) -> bool:
    """Returns whether copies may have fewer cells. Limits of differences may not be below a sound's chunks."""
    same = not target.of_window and target.limited is None and target.patch_size is None
    return same and all(change.layout.axes for change in changes)


def with_few(changes: Sequence[TableSize], field: ConfigField, few: tuple[int, int]) -> list[Any]:
    """Returns a field's values that give few cells in both copies, or []. Values are oblong where the true ones are."""
    change = max(changes, key=lambda each: sum(cells.field == field for cells in each.table.cells))
    values: list[Any] = []
    for layout, count in zip((change.table.layout, change.layout), few, strict=True):
        shorter = min((axis.size for axis in layout.axes if axis.name in IMAGE_AXES), default=0)
        pairs = [each for each in zip(layout.axes, change.table.cells, strict=True) if each[1].field == field]
        sides = [
            cells.value(2 * count if axis.name in IMAGE_AXES and axis.size > shorter else count)
            + max(cells.stride - cells.kernel, 0)
            for axis, cells in sorted(pairs, key=lambda each: each[1].side)
        ]
        if not sides:
            return []
        values.append(sides[0] if len(set(sides)) == 1 and isinstance(field.value, int) else sides)
    return values
