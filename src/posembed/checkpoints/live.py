"""Resizes a model in memory: ``posembed.resize_model_`` changes any module with a position table in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.edit import Edit, plan_edit
from posembed.checkpoints.found import Size
from posembed.checkpoints.own_modules import is_of_transformers, plan_own
from posembed.checkpoints.rebuild import build_on_meta, config_object
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout

DISTRIBUTED = re.compile(r"torch\.(nn\.parallel\.distributed|distributed\.(fsdp|tensor))\b")


@torch.inference_mode(False)  # or the new values would be tensors that cannot be trained
def resize_model_(
    model: nn.Module,
    *,
    length: int | None = None,
    image_size: int | Size | None = None,
    grid: Size | None = None,
    method: str | None = None,
    table: str | Sequence[str] | None = None,
    layout: TableLayout | None = None,
) -> Edit:
    """Gives a module position tables of another length, in place: a model of transformers, or any nn.Module.

    The table, the buffers of its length (position ids, masks, also those that no checkpoint holds) and the numbers
    that say it change together, or nothing does. Dtype, device and ``requires_grad`` stay.

    In a module that transformers does not define, the table is found by its name, such as
    ``position_embeddings.weight``, ``pos_embedding`` or ``wpe.weight``, or by its type, if it is a posembed layer. A
    fixed sinusoid in a buffer is continued by its formula. Numbers named like a length (``max_len``, ``block_size``)
    that equal the old one get the new one, in modules and in their ``config``; a module that keeps the length under
    another name, or in its code, has to be changed by hand.

    The Parameter objects stay, with new values and without gradients, so an optimizer still holds them. Its running
    averages for the table have the old shape: create the optimizer after this call, or delete
    ``optimizer.state[parameter]``. Call this before the model is wrapped or sharded for distributed training.

    Args:
        length, image_size, grid, method: as for ``posembed.resize_checkpoint``.
        table: the key of the table, or the path of its module, if there are several; in a module that transformers
            does not define, also the names of several tables of one length.
        layout: how the rows are read, if the module does not show that some are reserved.

    Raises:
        ArgumentError: a size or method that cannot be used; a distributed model, or a parametrized table; in a module
            of your own, no table, or several, could be meant.
        CheckpointError: something that depends on the length is not understood; in a model of transformers, no table,
            or several, could be meant.
    """
    size = {"length": length, "image_size": image_size, "grid": grid, "method": method}
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"expected a module; got {type(model).__name__}. For files, use posembed.resize_checkpoint")
    refuse_distributed(model)
    if is_of_transformers(model):
        if layout is not None or not isinstance(table, str | None):
            raise ArgumentError(
                f"{type(model).__name__} is a model of transformers, which shows how its rows are read: leave layout "
                f"out, and name one table; got layout={layout}, table={table!r}"
            )
        return resize_transformers_(model, table=table, **size)
    edit, attributes = plan_own(model, table=table, layout=layout, **size)
    for key, values in edit.tensors.items():
        if values is not None:
            assign_(model, key, values)
    for attribute in attributes:
        attribute.holder[attribute.name] = attribute.value
    return edit


def refuse_distributed(model: nn.Module) -> None:
    """Refuses a model with modules of DDP or FSDP, or sharded parameters: they keep what depends on the old shapes."""
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if any(DISTRIBUTED.match(kind.__module__) for kind in type(part).__mro__):
            raise ArgumentError(
                f"{name or 'the model'} is distributed ({type(part).__name__}): call resize_model_ before the model is "
                "wrapped or sharded"
            )


def assign_(model: nn.Module, key: str, values: Tensor) -> None:
    """Gives a parameter or a buffer new values of any shape, wherever it is held."""
    path, _, name = key.rpartition(".")
    old = getattr(model.get_submodule(path), name)
    values = values.to(old.device, old.dtype)
    if isinstance(old, nn.Parameter):
        # Data of another dtype also replaces autograd's node for the parameter, which earlier outputs may keep alive:
        # it expects gradients of the old shape.
        old.data = values.new_empty(0, dtype=torch.float64 if values.dtype == torch.float32 else torch.float32)
        old.data, old.grad = values, None
        return
    for module in model.modules():
        for name in [name for name, buffer in module._buffers.items() if buffer is old]:
            module._buffers[name] = values


def resize_transformers_(model: Any, **arguments: Any) -> Edit:
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    edit = plan_edit(config, tensors, **arguments)
    with torch.random.fork_rng(devices=[]):  # random buffers come out the same
        torch.default_generator.manual_seed(0)
        old = build_on_meta(config_object(config), buffers=True)
        torch.default_generator.manual_seed(0)
        new = build_on_meta(config_object(edit.config or config), buffers=True)
    buffers = dict(changed_buffers(model, old, new))
    # All refusals are above; from here on, only assignments.
    for key, values in ({change.key: change.after for change in edit.tables} | buffers).items():
        assign_(model, key, values)
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
