"""What surrounds each call of a base model: its ForwardPass is created from the inputs, and discarded afterwards."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from posembed.errors import ArgumentError
from posembed.integrations.attention import CURRENT, NAME, Cache, PreTrainedModel, carrying
from posembed.integrations.forward_pass import UNCOUNTABLE, ForwardPass, encoding_on, image_pass, place
from posembed.integrations.masks import check_shape, present_in
from posembed.integrations.saved import acts_in_attention
from posembed.integrations.slot import INTERPOLATES, PositionSlot, rows_of_pass
from posembed.layers.base import PositionEncoding, overrides
from posembed.positions.checks import require_integers

CACHES = ("cache", "past_key_values")
"""The names that versions of transformers give to the cache of a base model."""
CROSS_ATTENTION = (
    "whose queries and keys belong to two texts; replace_positions is for an encoder or a decoder alone. Build the "
    "model from posembed.nn instead"
)


@dataclass(frozen=True)
class BaseHooks:
    """Hooks that create the ForwardPass of each call of a base model, and discard it afterwards."""

    slot_path: str

    def before(
        self, base: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        parameters = inspect.signature(type(base).forward).parameters  # a forward that hides it may take (*args)
        kwargs = dict(zip([*parameters][1:], args, strict=False)) | kwargs
        slot = base.get_submodule(self.slot_path)
        found = slot.encoding if isinstance(slot, PositionSlot) else slot
        if not isinstance(slot, PositionSlot) or not isinstance(found, PositionEncoding):
            raise ArgumentError(
                f"expected the encoding at {self.slot_path} of {type(base).__name__}, where replace_positions put it, "
                f"got {type(found).__name__}. Put the module back that was there; an adapter cannot wrap it, as PEFT's "
                "modules_to_save does"
            )
        attention = cast(Any, base.config)._attn_implementation
        if attention != NAME:
            raise ArgumentError(
                f"the attention of {type(base).__name__} was set to {attention!r}, which the encoding does not reach; "
                f"call set_attn_implementation({NAME!r})"
            )
        if kwargs.get("encoder_hidden_states") is not None:
            raise ArgumentError(
                f"{type(base).__name__} was given encoder_hidden_states for cross-attention, {CROSS_ATTENTION}"
            )
        shares = not (base.training and is_checkpointing(base))
        if slot.old.grid:
            any_size = INTERPOLATES not in parameters or bool(kwargs.get(INTERPOLATES))
            tokens = _of_images(slot, kwargs, shares, any_size)
            if INTERPOLATES in parameters:  # otherwise the model would read the parameter that was the table
                kwargs[INTERPOLATES] = True
        else:
            around = base.get_submodule(self.slot_path.rpartition(".")[0])
            tokens = _of_texts(slot, base, around, kwargs, parameters, shares)
        if tokens is None:
            return (), kwargs  # the model itself reports the missing input
        tokens.dtype = next(tensor.dtype for tensor in _parameters(base) if tensor.is_floating_point())
        tokens.carried_by_keyword = slot.carried_by_keyword
        if tokens.uncountable and "use_cache" in parameters:
            if kwargs.get("use_cache") is None and not base.training:
                warnings.warn(f"{type(base).__name__} returns no cache: {UNCOUNTABLE}", stacklevel=2)
            kwargs["use_cache"] = False
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            kwargs[NAME] = tokens
            if slot.old.grid and not shares and not slot.carried_by_keyword and "attention_mask" not in parameters:
                kwargs["attention_mask"] = carrying(torch.ones(1, 1, 1, 1, dtype=torch.bool), tokens)
        outer = CURRENT.held[NAME]
        # Another model may be calling this one. A pass of this model itself has been interrupted.
        tokens.slot, tokens.outer = slot, None if outer is None or outer.slot is slot else outer
        tokens.base = base
        CURRENT.held[NAME] = tokens
        return (), kwargs

    def after(self, base: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        tokens = CURRENT.held[NAME]
        if tokens is None or tokens.slot is not base.get_submodule(self.slot_path):
            return  # it failed before its pass began
        CURRENT.held[NAME] = tokens.outer
        if tokens.uncountable and caches_in(output):
            raise ArgumentError(UNCOUNTABLE)


class Forward:
    """The ``forward`` of a base model. sentence-transformers calls it instead of the model, so that no hook runs; it
    then makes the pass itself.

    It refers to the model weakly, so that a deleted model is freed at once.
    """

    def __init__(self, base: PreTrainedModel, hooks: BaseHooks) -> None:
        self.base, self.hooks = weakref.ref(base), hooks

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        base = self.base()
        return Forward(memo.get(id(base), base), self.hooks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.base(), self.hooks)

    @property
    def __signature__(self) -> inspect.Signature:
        base: Any = self.base()
        return inspect.signature(type(base).forward.__get__(base))

    @property
    def __func__(self) -> Forward:
        return self

    @property
    def __code__(self) -> Any:  # torch.export names it in its errors
        return type(cast(Any, self.base())).forward.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        base, tokens, output = cast(Any, self.base()), CURRENT.held[NAME], None
        if args and isinstance(args[0], nn.Module):  # accelerate makes a method of ``__func__``
            args = args[1:]
        if tokens is not None and tokens.base.config is base.config:  # the model, or its replica in nn.DataParallel
            try:
                return type(tokens.base).forward(tokens.base, *args, **kwargs)
            except Exception:
                raise
            except BaseException:  # after which PyTorch calls no hook
                self.hooks.after(tokens.base, (), None)
                raise
        _, kwargs = self.hooks.before(base, args, kwargs)
        try:
            output = type(base).forward(base, **kwargs)
        finally:
            self.hooks.after(base, (), output)
        return output


def caches_in(values: Any) -> dict[Any, Cache]:
    """Returns the caches in the arguments or the output of a base model, by name or index.

    A cache is recognised by its type, because its name differs between versions of transformers.
    """
    named: Iterable[tuple[Any, Any]] = ()
    if isinstance(values, Mapping):
        named = values.items()
    elif isinstance(values, tuple):
        named = enumerate(values)
    return {name: value for name, value in named if isinstance(value, Cache)}


def _parameters(base: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters, which in a replica of nn.DataParallel are plain tensors."""
    for module in base.modules():
        tensors = {**module._parameters, **getattr(module, "_former_parameters", {})}
        yield from (tensor for tensor in tensors.values() if tensor is not None)


def _of_texts(
    slot: PositionSlot, base: nn.Module, around: nn.Module, kwargs: dict[str, Any], known: Container[str], shares: bool
) -> ForwardPass | None:
    encoding, ids, x = slot.encoding, kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    if ids is not None:
        x = torch.atleast_2d(ids).flatten(0, -2)
    if x is None:
        return None
    (batch, length), device = x.shape[:2], x.device
    mask, position_ids = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if position_ids is not None:
        require_integers(position_ids, "position_ids")
        position_ids = torch.atleast_2d(position_ids).to(device).flatten(0, -2)
    caches = caches_in(kwargs)
    if unknown := [name for name in CACHES if kwargs.get(name) is not None and name not in caches]:
        kind = type(kwargs[unknown[0]]).__name__
        raise ArgumentError(f"{unknown[0]} must be a Cache of transformers, such as a DynamicCache; got a {kind}")
    cache = next(iter(caches.values()), None)
    earlier = 0 if cache is None else int(cache.get_seq_length())
    if not isinstance(mask, Tensor):
        mask = None
    elif mask.dim() == 3 and ids is not None and ids.shape == mask.shape:  # several texts of each example
        mask = mask.reshape(x.shape)
    else:
        check_shape(mask, batch, length, earlier)
    of_pairs = False
    if mask is not None and mask.dim() == 4:
        of_pairs = True
        mask = present_in(mask, earlier, slot.causal, position_ids, of_mask="position_ids" not in known)
        mask = mask.expand(batch, -1)
    packs = slot.causal and position_ids is not None
    asked = kwargs.get("use_cache")
    drawn = position_ids is None and slot.training and overrides(encoding, "training_positions")
    if drawn:
        if slot.causal and (caches or asked):
            raise ArgumentError(
                "the encoding draws random positions in training, and a cache keeps no positions: call model.eval(), "
                "or pass use_cache=False and no cache"
            )
        position_ids = encoding.training_positions(batch, length, torch.default_generator)
    needs_count = slot.causal and acts_in_attention(encoding)
    by_default = asked is None and "use_cache" in known and base.config.use_cache  # type: ignore[union-attr]
    keeps = bool(caches or asked or (by_default and not base.training))
    placed = place(
        position_ids, mask, earlier=earlier, length=length, device=device, packs=packs,
        must_count=needs_count and keeps and not drawn and torch.compiler.is_compiling(),
    )  # fmt: skip
    if kwargs.get("token_type_ids") is None and isinstance(getattr(around, "token_type_ids", None), Tensor):
        # Otherwise the model would read zeros from a buffer of the old table's length.
        kwargs["token_type_ids"] = torch.zeros(batch, length, dtype=torch.int64, device=device)
    tokens = ForwardPass(encoding, batch, length, device, causal=slot.causal, placed=placed, shares_bias=shares)
    tokens.uncountable = (needs_count and placed.has_gaps) or (slot.causal and drawn)
    # As in transformers, whose mask keeps packed texts apart in some models: a cache or a mask of pairs makes them one.
    tokens.separates = not of_pairs and (tokens.uncountable or not (caches or asked or by_default))
    if tokens.uncountable and (caches or asked):
        raise ArgumentError(UNCOUNTABLE)
    return tokens


def _of_images(slot: PositionSlot, kwargs: dict[str, Any], shares: bool, any_size: bool) -> ForwardPass | None:
    pixels = kwargs.get("pixel_values")
    if pixels is None:
        return None
    assert slot.old.patch is not None
    assert slot.old.grid is not None
    patches = kwargs.get("patch_attention_mask")  # the model would place the patches of a smaller image by its own size
    if patches is not None and not bool(patches.all()):
        raise ArgumentError("patch_attention_mask hides patches, whose image has another grid; pass images of one size")
    if not any_size and tuple(pixels.shape[-2:]) != slot.old.image:
        raise ArgumentError(
            f"the model reads images of (height, width)={slot.old.image}, got {tuple(pixels.shape[-2:])}; resize "
            f"the images, or pass {INTERPOLATES}=True"
        )
    grid = (pixels.size(-2) // slot.old.patch[0], pixels.size(-1) // slot.old.patch[1])
    encoding = encoding_on(slot.encoding, grid, slot.old.grid, training=slot.training)
    return image_pass(encoding, pixels.size(0), slot.old.prefix, grid, pixels.device, shares=shares)


def add_hooks(base: PreTrainedModel, owner: nn.Module, slot: PositionSlot, undo: ExitStack) -> None:
    """Adds the hooks of ``BaseHooks`` to a base model and, if it reads images, ``rows_of_pass`` to its embeddings."""
    hooks = BaseHooks(next(path for path, module in base.named_modules() if module is slot))
    undo.callback(base.register_forward_pre_hook(hooks.before, with_kwargs=True).remove)
    undo.callback(base.register_forward_hook(hooks.after, always_call=True).remove)
    if "forward" not in vars(base):  # accelerate, or a user, has replaced it
        base.__dict__["forward"] = Forward(base, hooks)
        undo.callback(base.__dict__.pop, "forward", None)
    if slot.old.grid:
        owner.__dict__[INTERPOLATES] = rows_of_pass
        undo.callback(owner.__dict__.pop, INTERPOLATES, None)


def is_checkpointing(base: PreTrainedModel) -> bool:
    """Returns whether transformers, or a PyTorch wrapper, runs layers again in the backward pass."""
    named_anew = hasattr(PreTrainedModel, "is_activation_checkpointing")
    reruns = base.is_activation_checkpointing if named_anew else base.is_gradient_checkpointing
    return reruns or any(isinstance(module, CheckpointWrapper) for module in base.modules())
