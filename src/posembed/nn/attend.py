"""Attention restricted to the tokens that each token sees. Under a window, its cost is proportional to the window."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from posembed.layers.base import PositionEncoding, ScoreMod, overrides
from posembed.nn.toeplitz import ToeplitzBias, attend_in_blocks
from posembed.torch_internals import transforms_are_active

# Measured on two CPU cores, forward and backward: up to about 8 windows a dense (L, L) mask costs less (2.6 times
# less at L = 4 w); beyond that, blocks cost less (5 times less at L = 32 w).
DENSE_UP_TO_WINDOWS = 8

SMALLEST_FLEX_HEAD = 16
"""The smallest width of a head for which FlexAttention has a kernel."""


class FlexBias(NamedTuple):
    """A bias in FlexAttention's form, which its kernel evaluates without an (H, L, L) tensor."""

    score_mod: ScoreMod | None
    visible: Any
    """The BlockMask of the tokens that each token sees. None means all tokens."""


Bias = Tensor | FlexBias | ToeplitzBias
"""The bias on the scores: floats, -inf where a token is hidden; or booleans, True where a token is visible. Tensors
broadcast to (B, H, Lq, Lk)."""


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Bias | None, *, causal: bool, window: int | None = None) -> Tensor:
    """Attends from q (B, H, Lq, d') to k (B, Hk, Lk, d') and v (B, Hk, Lk, d). Returns (B, H, Lq, d).

    H is a multiple of Hk: the first H / Hk query heads attend to the first key head, and so on.

    Args:
        bias: the bias on the scores. If given, the bias alone decides which tokens each token sees. For q and k of
            width 0 it must be floats, the scores.
        causal: without a bias, True lets token i see only the tokens up to i (Lq = Lk).
        window: without a bias, token i of a causal text sees i - window + 1 .. i. None means all tokens up to i.
    """
    if isinstance(bias, ToeplitzBias):
        return attend_in_blocks(q, k, v, bias)
    grouped = q.size(1) != k.size(1)
    if isinstance(bias, FlexBias):
        return compiled("flex_attention")(
            q, k, v, score_mod=bias.score_mod, block_mask=bias.visible, enable_gqa=grouped
        )
    length = q.size(-2)
    if bias is None and causal and window is not None and window < length:
        if length > DENSE_UP_TO_WINDOWS * window:
            return _attend_in_blocks(q, k, v, window)
        bias = causal_mask(length, window, q.device)
    if bias is None:
        if grouped and length == 1:
            return _attend_from_one(q, k, v, None)
        return attend_padded(q, k, v, is_causal=causal, enable_gqa=grouped)
    bias = bias if bias.dtype == torch.bool else bias.to(q.dtype)
    bias = bias.unsqueeze(0) if bias.dim() == 3 else bias
    if not q.size(-1):
        v = v.repeat_interleave(q.size(1) // v.size(1), dim=1) if grouped else v
        return bias.softmax(dim=-1) @ v
    if grouped and length == 1:
        return _attend_from_one(q, k, v, bias)
    return attend_padded(q, k, v, attn_mask=bias, enable_gqa=grouped)


def attend_padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Calls scaled_dot_product_attention, with zeros added to values that are narrower than the keys, as with PoPE.

    If the widths differ, PyTorch keeps all (Lq, Lk) weights on a CPU. A single query needs no zeros: it has Lk weights.
    """
    width, missing = v.size(-1), k.size(-1) - v.size(-1)
    if missing <= 0 or q.size(-2) == 1 or not q.is_cpu:
        return dot_product_attention(q, k, v, **options)
    return dot_product_attention(q, k, F.pad(v, (0, missing)), **options)[..., :width]


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Calls scaled_dot_product_attention. Under torch.func's transforms on a CPU, PyTorch's own definition runs: its
    fast kernel gives a mask no gradient, and the transforms hide that one is needed."""
    if q.is_cpu and transforms_are_active():
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, **options)
    return F.scaled_dot_product_attention(q, k, v, **options)


def _attend_from_one(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attends from one token q (B, H, 1, d'): the query heads of a group become the queries of one head.

    PyTorch would repeat the keys and values of the whole cache for each query head, which takes 2 to 8 times as long.
    """
    key_heads = k.size(1)
    if bias is not None and bias.dim() == 4 and bias.size(1) > 1:
        bias = bias.reshape(bias.size(0), key_heads, -1, bias.size(-1))
    y = dot_product_attention(q.reshape(q.size(0), key_heads, -1, q.size(-1)), k, v, attn_mask=bias)
    return y.reshape(*q.shape[:3], -1)


def causal_mask(length: int, window: int | None, device: torch.device | None = None) -> Tensor:
    """Returns a boolean mask (L, L), True where token i (row) sees token j (column)."""
    distance = torch.arange(length, device=device).unsqueeze(1) - torch.arange(length, device=device)
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attends from each block of ``window`` queries to the keys of its own block and of the block before."""
    B, H, length, d = q.shape
    blocks = -(-length // window)
    tail = blocks * window - length
    q = F.pad(q, (0, 0, 0, tail)).reshape(B, H, blocks, window, d).transpose(1, 2).flatten(0, 1)

    def with_block_before(x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, window, tail)).unfold(2, 2 * window, window)
        return x.permute(0, 2, 1, 4, 3).flatten(0, 1)

    query = torch.arange(window, device=q.device).unsqueeze(1)
    key = torch.arange(2 * window, device=q.device)
    visible = ((key > query) & (key <= query + window)).repeat(blocks, 1, 1)
    visible[0, :, :window] = False  # no block comes before the first one
    visible = visible.unsqueeze(1).repeat(B, 1, 1, 1)
    y = attend_padded(q, with_block_before(k), with_block_before(v), attn_mask=visible, enable_gqa=k.size(1) != H)
    return y.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def flex_bias(
    encoding: PositionEncoding, position_ids: Tensor, *, causal: bool = True, texts: Tensor | None = None
) -> FlexBias | None:
    """Returns the bias of one text or packed texts as a FlexBias, or None if it must be dense or no bias is needed.

    Args:
        texts: the index of each token's text, (B, L) or (1, L), if several are packed. None means one text.
    """
    score_mod = encoding.score_mod(position_ids, position_ids)
    dense_alone = score_mod is None and overrides(encoding, "at_scores")
    if dense_alone or (score_mod is None and texts is None):
        return None
    if not causal and texts is None:
        return FlexBias(score_mod, None)
    window, length = encoding.window, position_ids.size(-1)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        seen = distance >= 0 if causal else distance == distance
        if window is not None:
            seen = seen & (distance < window)
        if texts is not None:
            row = batch if texts.size(0) > 1 else 0
            seen = seen & (texts[row, query] == texts[row, key])
        return seen

    batch = None if texts is None or texts.size(0) == 1 else texts.size(0)
    blocks = compiled("create_block_mask")(visible, batch, None, length, length, device=position_ids.device)
    return FlexBias(score_mod, blocks)


@cache
def compiled(name: str) -> Any:
    """Compiles a function of torch.nn.attention.flex_attention. Uncompiled, it would create (L, L) tensors."""
    return torch.compile(getattr(importlib.import_module("torch.nn.attention.flex_attention"), name))


def scale_by_log_length(q: Tensor, seen: Tensor, trained: int, window: int | None) -> Tensor:
    """Multiplies queries (B, H, L, d) that see n > trained tokens by ln n / ln trained, and no others.

    A softmax over more keys is flatter; the factor makes up for it (Su 2021, kexue.fm/archives/8823; Chiang and
    Cholak 2022, arXiv:2202.12172). A bias is not scaled.

    Args:
        seen: the number of tokens that each query would see without a window, int64 (L,) or (B, L).
    """
    if window is not None and window <= trained:
        return q
    seen = seen.clamp(min=trained, max=window)
    # The logarithm of integers would have torch's default dtype, whatever the queries have.
    seen_as_floats = seen.to(torch.promote_types(q.dtype, torch.float32))
    factor = (seen_as_floats.log() / math.log(trained)).masked_fill(seen == trained, 1.0)
    factor = factor if factor.dim() == 1 else factor.unsqueeze(1)
    return q * factor.to(q.dtype).unsqueeze(-1)
