"""Resizes a model in memory: ``posembed.resize_model_`` changes a live transformers model in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.edit import Edit, plan_edit
from posembed.checkpoints.found import Size
from posembed.checkpoints.rebuild import build_on_meta, config_object
from posembed.errors import ArgumentError, CheckpointError


def resize_model_(
    model: nn.Module,
    *,
    length: int | None = None,
    image_size: int | Size | None = None,
    grid: Size | None = None,
    method: str | None = None,
    table: str | None = None,
) -> Edit:
    """Gives a live transformers model position tables of another length, in place.

    Its parameters, its buffers (also those that no checkpoint holds), its modules' own notes of the length and its
    config change together, or nothing does. Dtype, device and ``requires_grad`` stay. An optimizer still holds the
    old parameter: create it after this call.

    Args: as for ``posembed.resize_checkpoint``.

    Raises:
        ArgumentError: not a model of transformers, or a size or method that cannot be used.
        CheckpointError: no table, or several, could be meant; something that depends on it is not understood.
    """
    import transformers

    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel) or getattr(transformers, name, None) is not type(model):
        raise ArgumentError(f"expected a model class of transformers, got {name}; unwrap it, or resize its checkpoint")
    config = {**model.config.to_dict(), "architectures": [name]}
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    edit = plan_edit(config, tensors, length=length, image_size=image_size, grid=grid, method=method, table=table)
    with torch.random.fork_rng(devices=[]):  # random buffers come out the same
        torch.default_generator.manual_seed(0)
        old = build_on_meta(config_object(config), buffers=True)
        torch.default_generator.manual_seed(0)
        new = build_on_meta(config_object(edit.config or config), buffers=True)
    buffers = dict(changed_buffers(model, old, new))
    # All refusals are above; from here on, only assignments.
    for change in edit.tables:
        old_table = model.get_parameter(change.key)
        values = change.after.to(old_table.device, old_table.dtype)
        new_table = nn.Parameter(values, requires_grad=old_table.requires_grad)
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is old_table:  # in every module, so that shared tables stay shared
                    module._parameters[name] = new_table
    for name, buffer in buffers.items():
        path, _, own_name = name.rpartition(".")
        model.get_submodule(path)._buffers[own_name] = buffer
    for path, module in old.named_modules():
        copy_numbers(module, new.get_submodule(path), model.get_submodule(path))
        if hasattr(module, "config"):
            copy_numbers(module.config, new.get_submodule(path).config, model.get_submodule(path).config)
    section, field = model.config, edit.target.field  # no module may hold this section
    for name in field.path[:-1] if field else ():
        section = getattr(section, name)
    if field:
        setattr(section, field.path[-1], edit.target.value)
    generation = getattr(model, "generation_config", None)
    writes = edit.target.is_text and "decoder" in edit.sides
    if writes and generation is not None and generation.max_length == edit.target.length[0]:
        generation.max_length = edit.target.length[1]
    return edit


def changed_buffers(model: nn.Module, old: nn.Module, new: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the live model's buffers that differ between two builds of it, with their new values.

    A mask's pattern alone does not show how it continues: GPT-Neo's is a window once the length exceeds it.
    """
    before = dict(old.named_buffers())
    for name, buffer in new.named_buffers():
        if name in before and before[name].shape == buffer.shape and torch.equal(before[name], buffer):
            continue
        live = model.get_buffer(name)
        if name not in before or not torch.equal(live.cpu(), before[name].to(live.dtype)):
            raise CheckpointError(f"{name}: not resized: depends on the length too, and differs from a new model's")
        yield name, buffer.to(live.device, live.dtype)


def copy_numbers(old: Any, new: Any, live: Any) -> None:
    """Sets plain attributes (num_embeddings, max_positions, image_size) that differ between two builds."""
    for name, value in vars(new).items():
        is_number = isinstance(value, int | float | tuple | list) and not name.startswith("_")
        if is_number and vars(old).get(name) != value:
            setattr(live, name, value)
