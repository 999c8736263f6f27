"""``posembed.resize_model_``: resizes the position tables of any module in memory, in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.own_modules import is_of_transformers, plan_own
from posembed.checkpoints.plan import RESAMPLED, Edit, plan_edit
from posembed.checkpoints.position_tables import Size, pair
from posembed.checkpoints.settings import generated, image_tokens_of_config, set_in
from posembed.checkpoints.sources.configs import build_on_meta, config_object
from posembed.checkpoints.sources.timm import is_built_by_timm, record_image_size
from posembed.errors import ArgumentError, CheckpointError, PosEmbedError
from posembed.tables.layout import TableLayout
from posembed.tables.modules import is_table_name

DISTRIBUTED = re.compile(r"torch\.(nn\.parallel\.distributed|distributed\.(fsdp|tensor))\b")


@checks_arguments
@torch.inference_mode(False)  # or the new values would be tensors that cannot be trained
def resize_model_(
    model: nn.Module,
    *,
    length: int | None = None,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
    grid: Size | None = None,
    window: int | Size | None = None,
    frames: int | None = None,
    queries: int | None = None,
    buckets: int | None = None,
    method: str | None = None,
    table: str | Sequence[str] | None = None,
    prove: bool = False,
    layout: TableLayout | None = None,
) -> Edit:
    """Resizes the position tables of a model of transformers or timm, or of any other nn.Module, in place.

    The table, the buffers of the same length (position ids and masks, saved in checkpoints or not) and the attributes
    that hold the length change together, or nothing changes. Dtype, device and ``requires_grad`` stay the same.

    timm's models must come from ``timm.create_model``, which records the arguments needed to rebuild a model.

    In any other module, the table is found by its name, such as ``position_embeddings.weight``, ``pos_embedding`` or
    ``wpe.weight``, or by its type, if it is a posembed layer. A fixed sinusoid in a buffer is recomputed by its
    formula. Integers named like a length (``max_len``, ``block_size``) and equal to the old length get the new length,
    in modules and in their ``config``. If a module keeps the length under another name, or in its code, change it
    yourself. An ``image_size`` in pixels grows with a grid.

    The Parameter objects stay the same, with new values and without gradients, so an optimizer still holds them. The
    optimizer's running averages for the table have the old shape: create the optimizer after this call, or delete
    ``optimizer.state[parameter]``. A fused optimizer (the default of transformers' Trainer) with the old shapes does
    not fail, but writes outside its memory. Call this before you wrap or shard the model.

    Args:
        length, image_size, patch_size, grid, window, frames, queries, buckets, method, prove: as for
            ``posembed.resize_checkpoint``.
        table: the key of the table, or the path of its module; required if there are several tables. In a module that
            transformers does not define, this can also be a list of tables of the same length.
        layout: the roles of the rows; required if some rows are not positions and the module does not show which.

    Raises:
        ArgumentError: a size or method cannot be used; the model is distributed; the table is parametrized (or
            normed, or pruned); or, in a module that transformers does not define, there is no table, or more than one.
        CheckpointError: it is unknown how to change something that depends on the length; or it is unclear which table
            of a transformers model is meant.

    Examples:
        >>> import torch
        >>> from posembed import resize_model_
        >>> model = torch.nn.ModuleDict({"position_embeddings": torch.nn.Embedding(512, 64)})
        >>> edit = resize_model_(model, length=2048)
        >>> model["position_embeddings"]
        Embedding(2048, 64)
        >>> edit.tables[0].kept  # rows 0 to 511 are unchanged
        512
    """
    size = NewSize(length=length, image_size=image_size, patch_size=patch_size, grid=grid, window=window,
                   frames=frames, queries=queries, buckets=buckets)  # fmt: skip
    how: dict[str, Any] = {"method": method, "prove": prove}
    refuse_wrapped(model)
    for path, slot in model.named_modules():  # an encoding that replace_positions put into a model
        named = isinstance(table, str) and f"{table}.".startswith(f"{path}.")
        if path and hasattr(slot, "record_in_config") and (named or (table is None and slot.belongs_to(model))):
            if (image := pair(size.image_size)) and slot.patch:
                cells = image[0] // slot.patch[0], image[1] // slot.patch[1]
                if image != (cells[0] * slot.patch[0], cells[1] * slot.patch[1]):
                    raise ArgumentError(f"image_size must be a multiple of the patch {slot.patch}; got {image}")
                size = replace(size, image_size=None, grid=cells)
            inner = f"{table or ''}".removeprefix(path).removeprefix(".encoding").removeprefix(".")
            try:
                edit = resize_model_(slot.encoding, table=inner or None, layout=layout, **vars(size), **how)
            except PosEmbedError as error:
                raise type(error)(f"{path}.encoding ({type(slot.encoding).__name__}): {error}") from error
            slot.record_in_config()
            return replace(edit, tables=tuple(replace(each, key=f"{path}.encoding.{each.key}") for each in edit.tables))
    if is_of_transformers(model):
        if layout is not None or not isinstance(table, str | None):
            raise ArgumentError(
                f"{type(model).__name__} is a model of transformers, which shows the layout itself: leave layout "
                f"out, and name one table; got layout={layout}, table={table!r}"
            )
        return resize_transformers_(model, size, table=table, **how)
    if is_built_by_timm(model) and layout is None and isinstance(table, str | None):
        return resize_timm_(model, size, table=table, **how)
    if layout is None and length is None and type(model).__module__.startswith("timm.models."):
        own = ", or call its set_input_size" if hasattr(model, "set_input_size") else ""
        raise ArgumentError(
            f"this {type(model).__name__} of timm does not know the arguments that built it. Build it with "
            f"timm.create_model, load the weights into it with load_state_dict, and resize that model{own}"
        )
    edit, attributes = plan_own(model, size, table=table, layout=layout, **how)
    for key, values in edit.tensors.items():
        if values is not None:
            assign_(model, key, values)
    for attribute in attributes:
        attribute.holder[attribute.name] = attribute.value
    return edit


def refuse_wrapped(model: nn.Module) -> None:
    """Refuses what would keep the old shapes: DDP or FSDP modules, sharded parameters, and tables wrapped by peft."""
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if any(DISTRIBUTED.match(kind.__module__) for kind in type(part).__mro__):
            raise ArgumentError(
                f"{name or 'the model'} is distributed ({type(part).__name__}): call resize_model_ before the model is "
                "wrapped or sharded"
            )
    for name, module in model.named_modules():
        if type(module).__module__.startswith("peft.") and is_table_name(f"{name}.weight"):
            raise ArgumentError(
                f"{name} is a position table that peft has wrapped ({type(module).__name__}): call resize_model_ "
                "before get_peft_model, or on the model that merge_and_unload returns"
            )


def assign_(model: nn.Module, key: str, values: Tensor) -> None:
    """Gives a parameter or a buffer new values of any shape, in every module that holds it."""
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


def resize_transformers_(model: Any, size: NewSize, **how: Any) -> Edit:
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    edit = resize_rebuilt_(model, config, size, **how)
    for field, value in edit.fields.items():
        set_in(model.config, field.path, value)  # a section may not belong to any module
    if edit.target.image_size is not None:
        for setting in image_tokens_of_config(config, edit):
            set_in(model.config, setting.path, setting.after)
    if edit.target.is_text and "decoder" in edit.sides and model.can_generate():
        made = model.generation_config
        made.max_length = generated(made.max_length, *edit.target.length)
    return edit


def resize_timm_(model: Any, size: NewSize, **how: Any) -> Edit:
    """Resizes a timm model, and updates the build arguments and the image size that the model stores."""
    config = timm_settings(model)
    edit = resize_rebuilt_(model, config, size, **how)
    assert edit.config is not None
    model._model_args = edit.config["model_args"]
    if edit.target.image_size is not None:
        record_image_size(model, edit.target.image_size[1])
    return edit


def timm_settings(model: Any) -> dict[str, Any]:
    """Returns the content of the config.json that timm would write for a model."""
    args = dict(model._model_args)
    if (size := getattr(getattr(model, "patch_embed", None), "img_size", None)) is not None:
        args["img_size"] = size[0] if len(set(size)) == 1 else list(size)  # set_input_size may have changed it
    trained = dict(model.pretrained_cfg)
    return {"architecture": trained["architecture"], "model_args": args, "pretrained_cfg": trained}


def resize_rebuilt_(model: Any, config: dict[str, Any], size: NewSize, **how: Any) -> Edit:
    """Resizes a model that its library builds from a config: tables, and buffers and numbers that follow the size."""
    tensors = {key: value.detach() for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    edit = plan_edit(config, tensors, size, **how)
    with torch.random.fork_rng(devices=[]):  # both builds draw the same random buffers
        torch.default_generator.manual_seed(0)
        old = build_on_meta(config_object(config), buffers=True)
        torch.default_generator.manual_seed(0)
        new = build_on_meta(config_object(edit.config or config), buffers=True)
    buffers = dict(changed_buffers(model, old, new))
    # All errors are raised above; only assignments follow.
    weights: tuple[Any, ...] = (*edit.tables, *(each for each in edit.others if each.how == RESAMPLED))
    for key, values in ({change.key: change.after for change in weights} | buffers).items():
        assign_(model, key, values)
    for path, module in old.named_modules():
        part = model.get_submodule(path)
        copy_numbers(module, new.get_submodule(path), part)
        if hasattr(module, "config") and hasattr(part, "config"):
            copy_numbers(module.config, new.get_submodule(path).config, part.config)
        for name, cache in vars(part).items():
            if name.endswith("_cache") and isinstance(cache, dict):  # of biases, in LeViT and its like
                cache.clear()
    return edit


def changed_buffers(model: nn.Module, old: nn.Module, new: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the live model's buffers that differ between the old and the new build, with their new values.

    An old mask does not show how it continues: GPT-Neo's causal mask becomes a window at lengths above the window.
    """
    before = dict(old.named_buffers())
    after = dict(new.named_buffers())
    refused = "{}: not resized: {}. Resize its files, with posembed resize or posembed.resize_checkpoint, and load them"
    if before.keys() != after.keys():
        only = sorted(before.keys() ^ after.keys())[0]
        raise CheckpointError(refused.format(only, "the model has this buffer at one of the two sizes only"))
    for name, buffer in after.items():
        same = before[name].shape == buffer.shape
        if same and (buffer.is_meta or torch.equal(before[name], buffer)):  # without values, the shape decides
            continue
        if buffer.is_meta:  # I-BERT's integers
            raise CheckpointError(refused.format(name, "the new values of this buffer are not known"))
        live = model.get_buffer(name)
        if not torch.equal(live.cpu(), before[name].to(live.dtype)):
            raise CheckpointError(f"{name}: not resized: it also depends on the length, but differs from a new model's")
        yield name, buffer.to(live.device, live.dtype)


def copy_numbers(old: Any, new: Any, live: Any) -> None:
    """Copies the numeric attributes that differ between the builds ``old`` and ``new`` (such as num_embeddings and
    image_size) from ``new`` to ``live``."""
    held = getattr(old, "__dict__", {})  # a module's config may be a number (Idefics)
    for name, value in getattr(new, "__dict__", {}).items():
        is_number = isinstance(value, int | float | tuple | list) and not name.startswith("_")
        if is_number and held.get(name) != value:
            setattr(live, name, value)
