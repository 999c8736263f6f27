"""Tries out a changed model: padding, and steps with a cache, must not change the outputs for its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from posembed._version import __version__
from posembed.errors import ArgumentError, PosEmbedError
from posembed.integrations.attention import CURRENT, NAME, PreTrainedModel
from posembed.integrations.forward_pass import ForwardPass
from posembed.integrations.hooks import CACHES, caches_in, is_checkpointing
from posembed.integrations.install import layers_and_heads
from posembed.integrations.slot import PositionSlot
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.rotary import RotaryEmbedding

TOKENS, PADDING = 6, 2
VERSIONS = f"transformers {transformers.__version__}, posembed {__version__}"


def try_out(base: PreTrainedModel, slot: PositionSlot) -> bool:
    """Runs the model on one token or image. Returns whether its attention is causal.

    Raises:
        ArgumentError: the encoding does not reach every layer, or only some layers are causal.
    """
    config, device = base.config, device_of(base)
    is_checkpointing(base)  # which only training reads, so that a name that is missing is found here
    if slot.old.grid and slot.old.patch:
        height, width = (cells * pixels for cells, pixels in zip(slot.old.grid, slot.old.patch, strict=True))
        shape = (1, getattr(config, "num_channels", 3), height, width)
        inputs = {"pixel_values": torch.zeros(shape, device=device, dtype=base.dtype)}
    else:
        inputs = {"input_ids": _ids(base, 1, device)}
    with _trial(base, slot) as passes:
        try:
            base(**inputs)
        except PosEmbedError as error:
            why = f"{error}; choose an encoding for these sizes, or build the model from posembed.nn"
            raise ArgumentError(f"{type(base).__name__} is not replaced: {why}") from error
    reached = passes[0].seen_as_causal if passes else []
    layers, _ = layers_and_heads(config, causal=any(reached))
    if not reached or (isinstance(layers, int) and len(reached) != layers):
        raise ArgumentError(
            f"the encoding reaches {len(reached)} of the {layers} layers of {type(base).__name__}: the others compute "
            f"their attention themselves ({VERSIONS}). Choose another model, or build one from posembed.nn"
        )
    if len(set(reached)) > 1:
        raise ArgumentError(f"only some layers of {type(base).__name__} are causal; build the model from posembed.nn")
    slot.carried_by_keyword = passes[0].carried_by_keyword
    return reached[0]


def require_agreement(base: PreTrainedModel, slot: PositionSlot) -> None:
    """Compares the outputs for a few tokens alone and padded, the latter in two steps if a cache exists.

    Image models, which have no padding, are not compared.

    Raises:
        ArgumentError: the outputs differ, or the model's cache is not understood.
    """
    if slot.old.grid:
        return
    device, tokens = device_of(base), min(TOKENS, _length_known_to(slot.encoding))
    ids = _ids(base, tokens, device)
    padded = torch.cat((F.pad(ids, (0, PADDING), value=int(ids[0, 0])), F.pad(ids, (PADDING, 0), value=int(ids[0, 0]))))
    mask = torch.ones_like(padded)
    mask[0, tokens:] = mask[1, :PADDING] = 0
    parameters = signature(base.forward).parameters
    known = [name for name in (*CACHES, "use_cache") if name in parameters]
    with _trial(base, slot) as passes:
        whole = base(input_ids=ids)
        want = whole[0]
        if not slot.causal or tokens == 1 or not (known or caches_in(whole)):  # such as BERT, or the text model of CLIP
            got = base(input_ids=padded, attention_mask=mask)[0]
            _require_equal(base, "padded tokens differ from the same tokens alone", got, want, mask, passes[-1])
            return
        first = base(input_ids=padded[:, :-3], attention_mask=mask[:, :-3], use_cache=True)
        caches = caches_in(first)
        if len(caches) != 1:
            raise ArgumentError(
                f"{type(base).__name__} takes {', '.join(known)} and returns {len(caches)} caches, where one was "
                f"expected ({VERSIONS}). Install a version of transformers that posembed was tested with"
            )
        second = base(input_ids=padded[:, -3:], attention_mask=mask, use_cache=True, **caches)
    got = torch.cat((first[0], second[0]), dim=1)
    what = "padded tokens read in two steps with a cache differ from one pass without padding"
    _require_equal(base, what, got, want, mask, passes[-1])


def device_of(base: PreTrainedModel) -> torch.device:
    """Returns the device for a model's inputs. accelerate leaves weights on the meta device between their uses."""
    devices = [parameter.device for parameter in base.parameters()]
    loaded = next((device for device in devices if device.type != "meta"), None)
    offloaded = any(hasattr(module, "_hf_hook") for module in base.modules())
    return loaded or torch.device("cpu" if offloaded else "meta")


def _ids(base: PreTrainedModel, tokens: int, device: torch.device) -> Tensor:
    """Returns ids (1, L) of different tokens, if there are enough, without padding tokens, about which models warn."""
    padding = getattr(base.config, "pad_token_id", None)
    known = [token for token in range(min(base.config.vocab_size, tokens + 1)) if token != padding]
    return torch.tensor([(known * tokens)[:tokens]], device=device)


@contextmanager
def _trial(base: PreTrainedModel, slot: PositionSlot) -> Iterator[list[ForwardPass]]:
    """Yields the list of passes that a model will run. Restores modes and random state afterwards."""
    passes: list[Any] = []
    modes = [(module, module.training) for module in base.modules()]
    handle = slot.register_forward_pre_hook(lambda *_: passes.append(CURRENT.held[NAME]))
    kind = device_of(base).type
    try:
        base.eval()
        with (
            torch.no_grad(),
            torch.random.fork_rng([device_of(base)] if kind == "cuda" else []),
            torch.autocast(kind, enabled=False),
        ):
            yield passes
    finally:
        handle.remove()
        for module, mode in modes:
            module.training = mode


def _require_equal(
    base: PreTrainedModel, what: str, got: Tensor, want: Tensor, mask: Tensor, last: ForwardPass
) -> None:
    """Compares outputs (2, L, D) at the tokens in a mask with those of a plain pass, and the last pass's positions too.

    In bf16, rounding may hide the effect of a wrong position, so the positions are also compared directly.
    """
    new = last.q_positions.size(-1)
    ranks = (mask.cumsum(-1) - 1)[:, -new:]
    placed = bool((last.q_positions == ranks)[mask[:, -new:] != 0].all())
    rough = got.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    layers = max(len(last.seen_as_causal), 1)
    tolerance = min(0.5, 16 * torch.finfo(torch.bfloat16 if rough else got.dtype).eps * math.sqrt(layers))
    want = want.expand(2, -1, -1).flatten(0, 1).double()
    difference = ((got[mask != 0].double() - want).norm() / want.norm().clamp(min=1e-30)).item()
    if not placed or not difference <= tolerance:
        raise ArgumentError(
            f"{type(base).__name__} is not replaced: {what} (by {difference:.2g} of their norm, where {tolerance:.2g} "
            f"is rounding; their positions are {'right' if placed else 'wrong'}; {VERSIONS}). If the model mixes "
            "neighbouring tokens outside its attention, as MobileBERT does, build it from posembed.nn; else install a "
            "version of transformers that posembed was tested with"
        )


def _length_known_to(encoding: PositionEncoding) -> int:
    """Returns the largest length up to which longer texts do not change an encoding's effect on their first tokens."""
    if isinstance(encoding, LearnedPositionalEmbedding):
        return encoding.max_len
    scaling = encoding.scaling if isinstance(encoding, RotaryEmbedding) else None
    return TOKENS if scaling is None else scaling.original_length or TOKENS
