"""Causal attention with an optional bias and an optional window, at the price of what it sees."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Measured on two CPU cores, forward and backward: a dense (L, L) mask costs less up to about 8 windows
# (2.6 times less at L = 4 w), blocks beyond (5 times less at L = 32 w).
DENSE_UP_TO_WINDOWS = 8


def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None, window: int | None) -> Tensor:
    """q, k, v (B, H, L, d), bias (H, L, L) or (B, H, L, L) or None -> (B, H, L, d)."""
    length = q.size(-2)
    if window is not None and window >= length:
        window = None
    if bias is None and window is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if bias is None and window is not None and length > DENSE_UP_TO_WINDOWS * window:
        return _attend_in_blocks(q, k, v, window)
    visible = causal_mask(length, window, q.device)
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    bias = bias.to(q.dtype).masked_fill(~visible, float("-inf"))
    if bias.dim() == 3:
        bias = bias.unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


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
