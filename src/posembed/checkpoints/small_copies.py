"""Builds small copies of a model, at its own and at a new size, for the proof of a resize.

They have few layers, few heads and few tokens. Images that would take too long have fewer cells, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import ConfigField, TableSize
from posembed.checkpoints.proof_inputs import MOST_NUMBERS, NotTried, TooLarge
from posembed.checkpoints.sources.base import quiet
from posembed.checkpoints.sources.configs import models_around, source_of
from posembed.checkpoints.sources.hugging_face import part_of
from posembed.words import last_line

SILENT = 1e-6  # initial weights below this let nothing through
PRETRAINED = "pretrain_image_size"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer
Way = tuple[str, bool, bool]  # how a copy is built: the path of the model, whether it has few heads, and few layers


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


def ways_around(model: nn.Module, parameter: str) -> Iterator[Way]:
    """Yields the ways to build copies of the models that hold a parameter: the smallest one first."""
    return product(models_around(model, parameter), (True, False), (True, False))


def copies(
    models: Sequence[nn.Module], target: Target, changes: Sequence[TableSize], way: Way, parts: int = 1
) -> Copies:
    """Builds small copies of the old and the new model. parts: by how much the sizes that change are divided. Raises
    NotTried."""
    path, narrow, few_layers = way
    models = [model.get_submodule(path) for model in models]
    settings = {
        field: [divided(each, parts * parts if is_area(changes, field) else parts) for each in (field.value, value)]
        for field, value in (target.values.items() if parts > 1 else ())
    }
    for field, value in target.values.items():
        if field.path[-1] == PRETRAINED:  # the copies get images of these sizes
            image = ConfigField((*field.path[:-1], "image_size"), field.value)
            settings[image] = settings.get(field, [field.value, value])
    if few_layers:
        source_of(models[0].config).same_layers(models)
    with undisturbed():
        try:
            made = [
                small_copy(model, narrow=narrow, few_layers=few_layers, settings=at_size(settings, at))
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
            before, after = (change.table.sized(at_size(settings, at)) for at in (0, 1))
        tables[change.table.parameter.removeprefix(f"{path}.")] = before, after
    held = {name: sizes for name, sizes in tables.items() if name in dict(made[0].named_parameters())}
    if {NUMBER.sub("*", name) for name in tables} - {NUMBER.sub("*", name) for name in held}:
        raise NotTried("its layer is not among the few of a small copy")
    return Copies(made[0], made[1], *({name: sizes[at] for name, sizes in held.items()} for at in (0, 1)))


def at_size(settings: Mapping[ConfigField, Sequence[Any]], at: int) -> dict[ConfigField, Any]:
    return {field: values[at] for field, values in settings.items()}


def is_area(changes: Sequence[TableSize], field: ConfigField) -> bool:
    return any(cells.area for change in changes for cells in change.table.cells if cells.field == field)


def divided(size: Any, parts: int) -> Any:
    return size // parts if isinstance(size, int) else [side // parts for side in size]


def small_copy(
    model: nn.Module, *, narrow: bool, few_layers: bool = True, settings: Mapping[ConfigField, Any] | None = None
) -> nn.Module:
    """Builds a model of the same class on the CPU with few tokens and, if asked for, few layers and few heads.

    settings: config fields of the whole model, and other values of them.
    """
    config: Any = copy.deepcopy(model.config)
    source = source_of(config)
    source.make_small(config, narrow=narrow, few_layers=few_layers)
    for field, value in (settings or {}).items():
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
        if hasattr(section, field.path[-1]):
            setattr(section, field.path[-1], value)
            return
