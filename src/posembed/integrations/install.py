"""Puts an encoding into a transformers model: checks the model, and replaces its table."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.find import find_tables
from posembed.checkpoints.position_tables import PositionTable, pair
from posembed.errors import ArgumentError
from posembed.integrations.attention import NAME, GPTNeoSelfAttention, PreTrainedModel, bind_attention
from posembed.integrations.forward_pass import own_grid, require_grid
from posembed.integrations.hooks import CROSS_ATTENTION, add_hooks
from posembed.integrations.saved import encoding_for
from posembed.integrations.slot import NO_ROWS, OldTable, PositionSlot
from posembed.layers.base import PositionEncoding
from posembed.tables.fill import sinusoidal_table
from posembed.tables.modules import is_table_name

REMEDY = "posembed.integrations.transformers.from_pretrained"
"""The ``experts_implementation`` of a saved config. Every model checks this field, so transformers alone
refuses the folder, and its error names REMEDY."""


def install(
    model: PreTrainedModel,
    encoding: PositionEncoding | str,
    sizes: dict[str, Any],
    undo: ExitStack,
    *,
    causal: bool | None = None,
    is_saved: bool = False,
) -> tuple[PositionSlot, PreTrainedModel]:
    """Puts an encoding into a model. Returns the PositionSlot and the base model.

    Callbacks that undo the change are added to ``undo``. ``causal``: whether token i sees only the tokens up to i; None
    means the same as in the previous replacement. is_saved: whether the model was saved with the encoding, whose grid
    then counts.

    Raises:
        ArgumentError: the model cannot be changed, or the encoding does not fit.
    """
    require_reachable(model)
    found = find_slot(model)
    if found is not None:
        path, old = found[0], found[1].old
        causal = found[1].causal if causal is None else causal
    else:
        path, old = _old_table(model)
    assert causal is not None
    base = _base_around(model, path)
    like = next(parameter for parameter in base.parameters() if parameter.is_floating_point())
    is_embedding = found is not None or path.endswith(".weight")
    given = _sizes(base, old, causal) | sizes
    built = encoding_for(encoding, given, table_width=old.width)
    if old.grid and is_saved:
        old = old.on_grid(own_grid(built, old.grid))
    elif old.grid:
        require_grid(built, old.grid)
    built.to(None if like.is_meta else like.device, like.dtype)
    slot = PositionSlot(built, old, causal=causal).train(base.training)
    owner_path, _, name = path.removesuffix(".weight").rpartition(".")
    owner = model.get_submodule(owner_path)
    undo.callback(_restore, owner, dict(owner._parameters), dict(owner._modules))
    if not is_embedding:
        delattr(owner, name)
        setattr(owner, name, NO_ROWS)
    slot_name = name if is_embedding else f"{name}_{NAME}"
    setattr(owner, slot_name, slot)
    if found is None:
        add_hooks(base, owner, slot, undo)
    _change_config(model, slot, undo)
    for module in base.modules():
        if isinstance(module, GPTNeoSelfAttention) and "_attn" not in vars(module):
            bind_attention(module)
            undo.callback(delattr, module, "_attn")
            undo.callback(module.register_forward_pre_hook(bind_attention).remove)
    return slot, base


def require_reachable(model: Any) -> None:
    """Raises ArgumentError, with the reason, if an encoding cannot be added to the model's attention."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(
            f"expected a model of transformers, got {name}; unwrap it, and apply adapters after replace_positions"
        )
    if model.config.is_encoder_decoder or getattr(model.config, "add_cross_attention", False):
        raise ArgumentError(f"{name} is an encoder-decoder or a part of one: it has cross-attention, {CROSS_ATTENTION}")
    if model.config.output_attentions:
        raise ArgumentError(
            f"the config of {name} asks for output_attentions, and an attention with an encoding returns none; set "
            "config.output_attentions = False"
        )
    own = any(isinstance(module, GPTNeoSelfAttention) for module in model.modules())
    if not own and not model._can_set_attn_implementation():
        raise ArgumentError(
            f"{name} computes its attention itself, not through transformers' AttentionInterface, so an encoding does "
            "not reach it; choose a model that does, or build one from posembed.nn"
        )


def find_slot(model: nn.Module) -> tuple[str, PositionSlot] | None:
    """Returns the path and slot of an earlier replacement, or None if there was none."""
    return next(((path, slot) for path, slot in model.named_modules() if isinstance(slot, PositionSlot)), None)


def own_rows(model: PreTrainedModel) -> Tensor:
    """Returns a copy of the position rows (N, D) of a model's only position table, from position 0 on.

    Raises:
        ArgumentError: the model has no such table, or several.
    """
    table = _only_table(model)
    return table.layout.split(model.get_parameter(path_of(table, model)).detach())[1].clone()


def path_of(table: PositionTable, model: nn.Module) -> str:
    """Returns the parameter name of a table in this model; in a user's own class it can differ from transformers'."""
    held = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return table.parameter if table.parameter in held else table.key


def _only_table(model: PreTrainedModel) -> PositionTable:
    name = type(model).__name__
    config = {**model.config.to_dict(), "architectures": [name]}
    frozen = {key for key, each in model.named_parameters() if is_table_name(key) and not each.requires_grad}
    with torch.device("cpu"):  # while transformers loads a model, the default device is meta
        tensors = {
            key: _stand_in(tensor, formula=key in frozen) if tensor.is_meta else tensor
            for key, tensor in model.state_dict().items()
        }
        tables = find_tables(config, tensors).tables
    if len(tables) != 1:
        listed = ", ".join(table.key for table in tables)
        reason = f"several position tables ({listed})" if tables else "no position table"
        other = "" if tables else "; other kinds of positions (RoPE, relative biases) cannot be replaced"
        remedy = ", or load only the part that has the table" if tables else ""
        raise ArgumentError(
            f"{name} has {reason}, but replace_positions replaces exactly one{other}. Choose another model{remedy}"
        )
    table = tables[0]
    if not isinstance(table, PositionTable) or table.doubt or table.layout.tail:
        doubt = table.doubt or "its special tokens come after the patches"
        raise ArgumentError(f"{table.key} of {name} is not replaced: {doubt}")
    if table.layout.grid is not None and table.patch is None:
        raise ArgumentError(f"{table.key} of {name} is not replaced: its patch size is unknown")
    return table


def _stand_in(tensor: Tensor, *, formula: bool) -> Tensor:
    """Returns values for a tensor of a model that is not loaded yet: zeros have the layout of a learned table, and a
    table of a formula was recognised before it was saved."""
    if formula and tensor.dim() == 2 and tensor.shape[1] % 2 == 0:
        return sinusoidal_table(*tensor.shape).to(tensor.dtype)
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


def _old_table(model: PreTrainedModel) -> tuple[str, OldTable]:
    """Returns the path and the description of a model's only position table."""
    table = _only_table(model)
    path = path_of(table, model)
    field, layout = table.field, table.layout
    beyond = field.value - table.length if field is not None and isinstance(field.value, int) else 0
    image = pair(field.value) if field is not None and layout.grid is not None else None
    old = OldTable(
        table.width, layout.prefix, layout.grid, table.patch, image, field.path if field is not None else (), beyond
    )
    return path, old


def _base_around(model: PreTrainedModel, path: str) -> PreTrainedModel:
    """Returns the smallest model that contains a table and has attention."""
    while path:
        path = path.rpartition(".")[0]
        part = model.get_submodule(path)
        if isinstance(part, PreTrainedModel) and any(hasattr(module, "is_causal") for module in part.modules()):
            return part
    raise ArgumentError(f"{type(model).__name__} has no attention modules that say whether they are causal")


def _sizes(base: PreTrainedModel, old: OldTable, causal: bool) -> dict[str, Any]:
    config = base.config
    length = None if old.grid else reduce(getattr, old.field, config)
    cells = old.grid[0] * old.grid[1] if old.grid else 0
    return {
        "dim": config.hidden_size,
        "heads": layers_and_heads(config, causal=causal)[1],
        "max_len": cells + 1 if old.grid else length - old.beyond if isinstance(length, int) else None,
        "grid": old.grid,
        "causal": causal,
    }


def layers_and_heads(config: Any, *, causal: bool) -> tuple[Any, Any]:
    """Returns the numbers of layers and heads in a model's config; None for a number that it does not have."""
    if causal and hasattr(config, "decoder_attention_heads"):  # BartForCausalLM: the others are its encoder's
        return config.decoder_layers, config.decoder_attention_heads
    return getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)


def _change_config(model: PreTrainedModel, slot: PositionSlot, undo: ExitStack) -> None:
    """Gives the model its own copy of the config, which names the attention and the encoding."""
    memo: dict[int, Any] = {}
    copy.deepcopy(model.config, memo)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and id(config) in memo:
            undo.callback(setattr, module, "config", config)
            module.config = memo[id(config)]
    if model._can_set_attn_implementation():
        model.set_attn_implementation(NAME)
    else:
        model.config._attn_implementation_internal = NAME
    model.config.experts_implementation = REMEDY
    slot.config = model.config
    slot.record_in_config()


def _restore(owner: nn.Module, parameters: dict[str, Any], modules: dict[str, Any]) -> None:
    """Restores a module's old parameters and modules in their old order."""
    for name in parameters:
        owner.__dict__.pop(name, None)
    kinds: list[tuple[Any, dict[str, Any]]] = [(owner._parameters, parameters), (owner._modules, modules)]
    for now, then in kinds:
        now.clear()
        now.update(then)
