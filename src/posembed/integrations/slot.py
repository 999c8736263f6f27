"""The module that replaces a transformers model's position table, and the hooks that pass token positions to it."""

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

from posembed._version import __version__
from posembed.errors import ArgumentError
from posembed.integrations.attention import CURRENT, NAME, Cache, PreTrainedModel, carrying
from posembed.integrations.forward_pass import UNCOUNTABLE, ForwardPass, image_pass, place
from posembed.integrations.saved import acts_in_attention, described
from posembed.layers.base import PositionEncoding, overrides
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.checks import check_of, require_integers

ENDLESS = 2**40
CACHES = ("cache", "past_key_values")
"""The names that versions of transformers give to the cache of a base model."""
CROSS_ATTENTION = (
    "whose queries and keys belong to two texts; replace_positions is for an encoder or a decoder alone. Build the "
    "model from posembed.nn instead"
)
NO_ROWS = torch.zeros(1, 0, 0, device="cpu")
"""Replaces a table that was a parameter: transformers initializes this tensor when loading a model."""
INTERPOLATES = "interpolate_pos_encoding"
"""The name of an image model's function that returns rows for images of any size, and of the argument that calls it."""


HIDDEN = -9e3
"""Floats below this value in a mask hide a key: many models add -10,000, which bfloat16 rounds to -9,984. Values nearer
to 0, such as a bias, may be added to a key that is seen."""
check_visible = check_of(
    "a mask of pairs shows the tokens in a cache",
    lambda hidden: ~hidden.any(),
    lambda _: ArgumentError(
        "attention_mask (B, 1, Lq, Lk) hides tokens in the cache, which may be padding without a position or tokens "
        "with one: pass the position_ids of the new tokens, which tell whether hidden tokens count, or a mask (B, Lk)"
    ),
)


@dataclass(frozen=True)
class OldTable:
    """A description of the replaced table.

    Args:
        width: the width of its rows.
        prefix: the number of special tokens before the patches of an image.
        grid: (height, width), in patches, of the images that the model is built for; None for a sequence.
        patch: (height, width) of a patch in pixels. image: (height, width) of the images in pixels.
        field: the path of the config field that gives the length. beyond: the field's value minus that length.
    """

    width: int
    prefix: int = 0
    grid: tuple[int, int] | None = None
    patch: tuple[int, int] | None = None
    image: tuple[int, int] | None = None
    field: tuple[str, ...] = ()
    beyond: int = 0


class PositionSlot(nn.Module):
    """Replaces a model's position table, and returns the rows that its encoding adds to the input.

    Args:
        encoding: the encoding, which the model's attention also uses.
        old: a description of the replaced table.
        causal: whether token i sees only the tokens up to i.
    """

    def __init__(self, encoding: PositionEncoding, old: OldTable, *, causal: bool) -> None:
        super().__init__()
        self.encoding, self.old, self.causal = encoding, old, causal
        self.config: Any = None
        """The config of the model, which describes the encoding."""
        self.carried_by_keyword = True
        """Whether the model passes its ForwardPass to its attention, as ``try_out`` has seen."""

    @property
    def weight(self) -> Tensor:
        """A tensor (N, D) without data, from which some models read the number of positions."""
        return torch.empty(self.length or ENDLESS, self.old.width, device="meta")

    def table(self) -> Tensor | None:
        """Returns the learned rows of the encoding, or None."""
        return self.encoding.table()

    @property
    def length(self) -> int | None:
        """The number of positions of the encoding; None if it is unlimited."""
        encoding: PositionEncoding = self.encoding
        if isinstance(encoding, ExtendedPositionalEmbedding):
            return encoding.longest
        return encoding.max_len if isinstance(encoding, LearnedPositionalEmbedding) else None

    def belongs_to(self, model: nn.Module) -> bool:
        """Returns whether this is the encoding that a model's config describes, not that of another model inside it."""
        return getattr(model, "config", None) is self.config

    def record_in_config(self) -> None:
        """Writes the encoding and its length into the model's config, at the start and after a resize."""
        entry = {"version": __version__, "causal": self.causal, "encoding": described(self.encoding)}
        setattr(self.config, NAME, entry)
        if self.length is not None and self.old.field:
            section = self.config
            for part in self.old.field[:-1]:
                section = getattr(section, part)
            setattr(section, self.old.field[-1], self.length + self.old.beyond)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the rows of this pass, (1, L, D) or (B, L, D). The model's own position arguments are ignored."""
        tokens = current_pass()
        return tokens.rows_at_input(self.old.width, tokens.dtype)

    def encoding_on(self, grid: tuple[int, int]) -> PositionEncoding:
        """Returns the encoding for images with this grid. A copy for another grid cannot be trained."""
        if grid == self.old.grid:
            return self.encoding
        changed = self.encoding.on_grid(grid)
        if changed is not self.encoding and self.training and any(p.requires_grad for p in self.encoding.parameters()):
            raise ArgumentError(
                f"the encoding trains only on images of {self.old.grid} patches; got {grid}. Resize the images, or "
                "call replace_positions with encoding.on_grid((height, width))"
            )
        return changed

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


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
        base, tokens = cast(Any, self.base()), CURRENT.held[NAME]
        if args and isinstance(args[0], nn.Module):  # accelerate makes a method of ``__func__``
            args = args[1:]
        if tokens is not None and tokens.base.config is base.config:  # the model, or its replica in nn.DataParallel
            return type(tokens.base).forward(tokens.base, *args, **kwargs)
        output, (_, kwargs) = None, self.hooks.before(base, args, kwargs)
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
        _check_shape(mask, batch, length, earlier)
    if mask is not None and mask.dim() == 4:
        mask = _present_in(mask, earlier, slot.causal, position_ids, of_mask="position_ids" not in known)
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
    keeps = bool(caches or asked or (asked is None and "use_cache" in known and not base.training))
    placed = place(
        position_ids, mask, earlier=earlier, length=length, device=device, packs=packs,
        must_count=needs_count and keeps and not drawn and torch.compiler.is_compiling(),
    )  # fmt: skip
    if kwargs.get("token_type_ids") is None and isinstance(getattr(around, "token_type_ids", None), Tensor):
        # Otherwise the model would read zeros from a buffer of the old table's length.
        kwargs["token_type_ids"] = torch.zeros(batch, length, dtype=torch.int64, device=device)
    tokens = ForwardPass(encoding, batch, length, device, causal=slot.causal, placed=placed, shares_bias=shares)
    tokens.uncountable = (needs_count and placed.has_gaps) or (slot.causal and drawn)
    if tokens.uncountable and (caches or asked):
        raise ArgumentError(UNCOUNTABLE)
    return tokens


def _check_shape(mask: Tensor, batch: int, length: int, earlier: int) -> None:
    shape, keys = tuple(mask.shape), earlier + length
    pairs = len(shape) == 4 and shape[2] == length
    if (len(shape) != 2 and not pairs) or shape[0] not in (1, batch) or shape[-1] < keys:
        raise ArgumentError(
            f"attention_mask must be ({batch}, {keys}) or ({batch}, 1, {length}, {keys}), for the {earlier} tokens in "
            f"the cache and the {length} new ones; got {shape}"
        )


def _present_in(mask: Tensor, earlier: int, causal: bool, position_ids: Tensor | None, *, of_mask: bool) -> Tensor:
    """Returns the tokens (B, Lk) that are not padding, from the model's mask (B, 1 or H, Lq, Lk).

    These are the tokens that one reference token sees, preferably one that sees other tokens but not all: the last one
    in a decoder, and the one that sees fewest in an encoder. All other tokens must see the same tokens (in a decoder,
    only those up to themselves), or be padding that sees itself, everything or nothing. If they do not, as in packed
    texts, all tokens count. A decoder's token after the reference that sees only itself may start a block, and counts.
    A hidden token in the cache may be padding or not; only position_ids (B, Lq) show this. In a model without them
    (``of_mask``), the first tokens in the cache that no token sees are left padding.

    Raises:
        ArgumentError: the mask is neither booleans nor floats; it hides tokens in the cache without position_ids.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        what = "booleans, True for keys that are seen, or floats to add to the scores"
        raise ArgumentError(f"attention_mask (B, 1, Lq, Lk) must be {what}; got {mask.dtype}. Pass mask.bool()")
    if mask.dtype != torch.bool:
        mask = mask > HIDDEN
    seen = mask.any(1)
    keys = torch.arange(seen.size(2), device=mask.device)
    queries = keys[earlier : earlier + seen.size(1)]
    sees, itself = seen.any(-1, keepdim=True), keys == queries[:, None]
    alone = ~(seen & ~itself).any(-1, keepdim=True)
    lacks = (~seen & (keys <= queries[:, None])).any(-1, keepdim=True) if causal else ~seen.all(-1, keepdim=True)
    ahead = (seen & (keys > queries[:, None])).any(-1, keepdim=True) & causal  # only padding sees later keys
    kind = sees.long() + (sees & ~ahead) * (1 + (~alone).long() + (~alone & lacks))
    fewer = 0 if causal else len(keys) - seen.sum(-1, keepdim=True)
    rank = ((kind * (len(keys) + 1) + fewer) * (len(keys) + 1) + queries[:, None]).argmax(1)
    last = seen.take_along_dim(rank[..., None], 1)
    if not causal:  # padding that sees itself is seen by no other
        last = last & ((seen & ~itself).any(1, keepdim=True) | ~itself[rank] | alone.take_along_dim(rank[..., None], 1))
    expected = last & (keys <= queries[:, None]) if causal and len(queries) > 1 else last
    padding = ~last[:, 0, earlier : earlier + len(queries)]  # a token that sees everything or nothing is no padding
    plain = ((seen == expected) | itself).all(-1) | padding & (alone[..., 0] | seen.all(-1))
    present = last[:, 0] | ~plain.all(-1, keepdim=True)
    if causal:
        present = present | (itself & sees & alone & (queries > queries[rank])[..., None]).any(1)
    if not earlier:
        return present
    if position_ids is None:
        hidden = ~seen[..., :earlier]
        left = hidden.all(1).long().cumprod(-1).bool() if of_mask else torch.zeros_like(hidden[:, 0])
        wrong = check_visible(hidden & ~left[:, None])
        return torch.cat((~(left | wrong.any(1)), present[:, earlier:]), dim=-1)
    return present | ((position_ids[:, :1] == earlier) & (keys < earlier))


def _of_images(slot: PositionSlot, kwargs: dict[str, Any], shares: bool, any_size: bool) -> ForwardPass | None:
    pixels = kwargs.get("pixel_values")
    if pixels is None:
        return None
    assert slot.old.patch is not None
    patches = kwargs.get("patch_attention_mask")  # the model would place the patches of a smaller image by its own size
    if patches is not None and not bool(patches.all()):
        raise ArgumentError("patch_attention_mask hides patches, whose image has another grid; pass images of one size")
    if not any_size and tuple(pixels.shape[-2:]) != slot.old.image:
        raise ArgumentError(
            f"the model reads images of (height, width)={slot.old.image}, got {tuple(pixels.shape[-2:])}; resize "
            f"the images, or pass {INTERPOLATES}=True"
        )
    grid = (pixels.size(-2) // slot.old.patch[0], pixels.size(-1) // slot.old.patch[1])
    return image_pass(slot.encoding_on(grid), pixels.size(0), slot.old.prefix, grid, pixels.device, shares=shares)


def rows_of_pass(*args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``interpolate_pos_encoding`` in an image model's embeddings: returns the rows of the current pass."""
    rows: Tensor = current_pass().slot()
    return rows


def current_pass() -> ForwardPass:
    if (tokens := CURRENT.held[NAME]) is None:
        raise ArgumentError(
            "the module around a replaced position table was called by itself; call the model, or its base model"
        )
    return tokens


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
