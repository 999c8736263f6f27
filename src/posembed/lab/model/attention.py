"""Attention: causal, with an optional bias and an optional window, at the price of what it sees; or both ways."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.layers.base import PositionEncoding, ScoreMod

# Measured on two CPU cores, forward and backward: a dense (L, L) mask costs less up to about 8 windows
# (2.6 times less at L = 4 w), blocks beyond (5 times less at L = 32 w).
DENSE_UP_TO_WINDOWS = 8


SMALLEST_FLEX_HEAD = 16
"""FlexAttention has no kernel for narrower heads."""


class DenseBias(NamedTuple):
    """What to add to the scores, minus infinity where a token is not seen."""

    scores: Tensor
    """What broadcasts to (B, H, L, L)."""


class FlexBias(NamedTuple):
    """A bias as FlexAttention takes it, computed inside the kernel: no (H, L, L) tensor."""

    score_mod: ScoreMod
    visible: Any
    """The BlockMask of the tokens that each one sees."""


Bias = DenseBias | FlexBias
"""Made once a forward, for all layers."""


def bias_of(encoding: PositionEncoding, position_ids: Tensor, *, head_dim: int) -> Bias | None:
    """What the encoding adds to the scores, its window applied: through FlexAttention on a GPU, dense on a CPU."""
    if position_ids.is_cuda and head_dim >= SMALLEST_FLEX_HEAD:
        flex = flex_bias_of(encoding, position_ids)
        if flex is not None:
            return flex
    return dense_bias_of(encoding, position_ids)


def dense_bias_of(encoding: PositionEncoding, position_ids: Tensor) -> DenseBias | None:
    scores = encoding.at_scores(position_ids, position_ids)
    return None if scores is None else hide_what_comes_later(scores, encoding.window)


def hide_what_comes_later(scores: Tensor, window: int | None) -> DenseBias:
    """(H, L, L) or (B, H, L, L) -> the same where a token sees another, in a causal model with this window."""
    return DenseBias(scores.masked_fill(~causal_mask(scores.size(-1), window, scores.device), float("-inf")))


def flex_bias_of(encoding: PositionEncoding, position_ids: Tensor) -> FlexBias | None:
    """None where the encoding has no bias, or gives it in dense form alone."""
    score_mod = encoding.score_mod(position_ids, position_ids)
    if score_mod is None:
        return None
    window, length = encoding.window, position_ids.size(-1)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        return distance >= 0 if window is None else (distance >= 0) & (distance < window)

    blocks = compiled("create_block_mask")(visible, None, None, length, length, device=position_ids.device)
    return FlexBias(score_mod, blocks)


@cache
def compiled(name: str) -> Any:
    """A function of torch.nn.attention.flex_attention; without compiling it would make (L, L) tensors."""
    return torch.compile(getattr(importlib.import_module("torch.nn.attention.flex_attention"), name))


def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Bias | None, window: int | None) -> Tensor:
    """q, k (B, H, L, d'), v (B, H, L, d) -> (B, H, L, d). A bias comes with the window applied, by bias_of."""
    if isinstance(bias, FlexBias):
        return compiled("flex_attention")(q, k, v, score_mod=bias.score_mod, block_mask=bias.visible)
    if bias is not None:
        return attend_both_ways(q, k, v, bias=bias)
    length = q.size(-2)
    if window is None or window >= length:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if length > DENSE_UP_TO_WINDOWS * window:
        return _attend_in_blocks(q, k, v, window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(length, window, q.device))


def causal_mask(length: int, window: int | None, device: torch.device | None = None) -> Tensor:
    """Boolean (L, L): may token i (row) see token j (column)?"""
    distance = torch.arange(length, device=device).unsqueeze(1) - torch.arange(length, device=device)
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Each block of `window` queries against its own keys and those of the block before."""
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
    visible[0, :, :window] = False  # nothing stands before the first block
    visible = visible.unsqueeze(1).repeat(B, 1, 1, 1)
    y = F.scaled_dot_product_attention(q, with_block_before(k), with_block_before(v), attn_mask=visible)
    return y.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def attend_both_ways(q: Tensor, k: Tensor, v: Tensor, *, bias: DenseBias | None) -> Tensor:
    """Every token sees every other, but for what the bias hides, as in an encoder. (B, H, L, d) each."""
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v)
    scores = bias.scores.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=scores if scores.dim() == 4 else scores.unsqueeze(0))


def hide_padding(scores: Tensor | None, present: Tensor | None) -> DenseBias | None:
    """The bias of attend_both_ways under which no token sees a key that is not there.

    scores (H, L, L) or (B, H, L, L) or None; present, boolean (B, L), at least one True in each row, or None for
    all -> the scores so hidden, (B, 1, 1, L) where there were none.
    """
    if present is not None:
        hidden = ~present[:, None, None, :]
        scores = torch.zeros((), device=present.device) if scores is None else scores
        scores = torch.where(hidden, float("-inf"), scores)
    return None if scores is None else DenseBias(scores)


def scale_by_log_length(q: Tensor, trained: int, window: int | None) -> Tensor:
    """Queries (..., L, d) -> those that see n > trained tokens times ln n / ln trained, the others as they are.

    A softmax over more keys is flatter; multiplied so, its logits keep up (Su 2021, kexue.fm/archives/8823; Chiang
    and Cholak 2022, arXiv:2202.12172). The first query sees one token, each next one more, up to the window. A
    bias is not multiplied.
    """
    if window is not None and window <= trained:
        return q
    seen = torch.arange(1, q.size(-2) + 1, device=q.device).clamp(min=trained, max=window)
    return q * (seen.log() / math.log(trained)).to(q.dtype).unsqueeze(-1)
