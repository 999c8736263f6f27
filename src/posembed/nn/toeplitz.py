"""Attention with a bias of the distance alone (a Toeplitz matrix), on a CPU, without its (H, L, L) tensor.

Queries are read in blocks of ROWS. From block to block the bias only moves along the diagonal, so one band of ROWS rows
holds the bias of all blocks. A block skips the keys that none of its queries sees. The forward pass calls PyTorch's
fused kernel on each block. That kernel gives a bias no gradient; to compute one, PyTorch would keep all weights. Here
the backward pass recomputes a block's weights (Dao et al. 2022, arXiv:2205.14135, algorithm 4) and adds their gradient
to that of the band. Memory is linear in L.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.layers.base import PositionEncoding
from posembed.layers.score_bias import ScoreBias, in_full_precision, wide
from posembed.torch_internals import (
    forward_mode_is_active,
    holds_several_gradients,
    is_being_recorded,
    softmax_gradient,
    transforms_are_active,
)

# Measured on one core of an AMD EPYC at 128, 512 and 2,048 tokens, backward. Blocks of 32 queries take up to 1.1 times
# as long as blocks of 64, blocks of 128 queries 1.1 to 1.4 times. A quarter or twice as many weights change little.
ROWS = 64
"""The number of queries in a block."""
WEIGHTS_AT_ONCE = 2**18
"""The number of weights that the backward pass recomputes at once: few enough for a core's cache (1 MiB)."""

# With a dense bias that needs no gradient, PyTorch uses its fused kernel: at 512 tokens this takes as long as blocks,
# at 2,048 tokens 1.2 times as long, and its memory is quadratic.
DENSE_UP_TO = 1024
"""The number of tokens up to which a bias that needs no gradient is dense."""


class Block(NamedTuple):
    """A block of queries, the keys that they see, and the columns of the band that hold the bias of these keys."""

    queries: slice
    keys: slice
    columns: slice


class ToeplitzBias(NamedTuple):
    """The band (H, ROWS, C) that holds the bias of all blocks: row r, column c has the distance r - c + constant."""

    band: Tensor
    blocks: Sequence[Block]


def toeplitz_bias(diagonals: Tensor, *, causal: bool, window: int | None = None) -> ToeplitzBias:
    """Returns the bias of L > ROWS tokens from its values (H, 2 L - 1) for the distances L - 1 .. 1 - L."""
    length = (diagonals.size(-1) + 1) // 2
    ahead = ROWS if causal else length
    if causal:
        distance = torch.arange(length - 1, -length, -1, device=diagonals.device)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        diagonals = diagonals.masked_fill(hidden, float("-inf"))
    padded = F.pad(diagonals[:, : length + ahead - 1], (ROWS, 0), value=float("-inf"))
    band = padded.unfold(-1, length + ahead, 1).flip(-2)
    blocks = []
    for first in range(0, length, ROWS):
        last = min(first + ROWS, length)
        keys = slice(0 if window is None else max(0, first - window + 1), last if causal else length)
        columns = slice(keys.start - first + length, keys.stop - first + length)
        blocks.append(Block(slice(first, last), keys, columns))
    return ToeplitzBias(band, blocks)


def diagonals_if_faster(encoding: PositionEncoding, position_ids: Tensor) -> Tensor | None:
    """Returns the values (H, 2 L - 1) for ``toeplitz_bias``, or None if a dense bias is faster or necessary.

    Args:
        position_ids: the positions of one text, for both the queries and the keys.
    """
    length = position_ids.size(-1)
    if (
        is_being_recorded()
        or transforms_are_active()
        or forward_mode_is_active()
        or length <= ROWS
        or not (isinstance(encoding, ScoreBias) and type(encoding).at_scores is ScoreBias.at_scores)
    ):
        return None
    diagonals = encoding.diagonals(position_ids, position_ids)
    if diagonals is None or not (diagonals.requires_grad or length > DENSE_UP_TO):
        return None
    # A query that does not see itself may see no key at all, which only the dense path allows.
    return diagonals if type(diagonals) is Tensor and diagonals[:, length - 1].isfinite().all() else None


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: ToeplitzBias) -> Tensor:
    """Attends from q (B, H, L, d') to k (B, Hk, L, d') and v (B, Hk, L, d) with this bias. Returns (B, H, L, d)."""
    if q.size(1) != k.size(1):
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
    if type(q) is not Tensor:
        return _block_by_block(q, k, v, bias.band, bias.blocks)
    y: Tensor = _Attention.apply(q, k, v, bias.band, bias.blocks)
    return y


def _block_by_block(q: Tensor, k: Tensor, v: Tensor, band: Tensor, blocks: Sequence[Block]) -> Tensor:
    outputs = [
        F.scaled_dot_product_attention(
            q[:, :, block.queries], k[:, :, block.keys], v[:, :, block.keys], attn_mask=_of(block, band, q.dtype)
        )
        for block in blocks
    ]
    return torch.cat([y.transpose(1, 2) for y in outputs], dim=1).transpose(1, 2)


def _of(block: Block, band: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the bias of a block, (1, H, queries, keys)."""
    return band[None, :, : block.queries.stop - block.queries.start, block.columns].to(dtype)


class _Attention(torch.autograd.Function):
    """``_block_by_block`` with a backward pass that keeps no weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: Tensor, blocks: Sequence[Block]) -> Tensor:
        ctx.save_for_backward(q, k, v, band)
        ctx.blocks = blocks
        # The fused kernel is not chosen for a bias that requires a gradient, although none is recorded here.
        return _block_by_block(q, k, v, band.detach(), blocks)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, band = ctx.saved_tensors
        recorded = torch.is_grad_enabled()
        if not (recorded or transforms_are_active() or holds_several_gradients(dy)):
            return *_gradients(q, k, v, band, dy, ctx.blocks, of_band=ctx.needs_input_grad[3]), None
        # For derivatives of derivatives and for several gradients at once, autograd goes through the forward pass.
        with torch.enable_grad():
            y = _block_by_block(q, k, v, band, ctx.blocks)
        needed = [x for x in (q, k, v, band) if x.requires_grad]
        found = iter(torch.autograd.grad(y, needed, dy, create_graph=recorded))
        return *(next(found) if x.requires_grad else None for x in (q, k, v, band)), None


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, band: Tensor, dy: Tensor, blocks: Sequence[Block], *, of_band: bool
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of q, k, v and the band, computed in float32 or wider."""
    batch, heads, dtypes = q.size(0), q.size(1), [x.dtype for x in (q, k, v)]
    scale = q.size(-1) ** -0.5

    def by_head(x: Tensor) -> Tensor:
        return wide(x).transpose(0, 1).flatten(0, 1)  # (H B, L, d)

    with in_full_precision(q.device):
        bias, d_band = band, torch.zeros_like(band)
        q, k, v, dy = by_head(q) * scale, by_head(k), by_head(v), by_head(dy)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in blocks:
            rows, keys = block.queries, block.keys
            size = batch * (rows.stop - rows.start) * (keys.stop - keys.start)
            together = max(1, WEIGHTS_AT_ONCE // max(1, size))
            b = _of(block, bias, dtypes[0]).squeeze(0).to(q.dtype)
            d_b = d_band[:, : rows.stop - rows.start, block.columns]
            for head in range(0, heads, together):
                here = slice(head, min(head + together, heads))
                some = slice(here.start * batch, here.stop * batch)
                by_batch = (here.stop - here.start, batch)
                weights = torch.bmm(q[some, rows], k[some, keys].mT)
                weights.unflatten(0, by_batch).add_(b[here].unsqueeze(1))
                weights = torch.softmax(weights, dim=-1)
                dv[some, keys] += torch.bmm(weights.mT, dy[some, rows])
                d_scores = softmax_gradient(torch.bmm(dy[some, rows], v[some, keys].mT), weights)
                if of_band:
                    d_b[here] += d_scores.unflatten(0, by_batch).sum(1)
                dq[some, rows] = torch.bmm(d_scores, k[some, keys])
                dk[some, keys] += torch.bmm(d_scores.mT, q[some, rows])

    def by_text(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.unflatten(0, (heads, batch)).transpose(0, 1).to(dtype)

    of_inputs = (by_text(x, dtype) for x, dtype in zip((dq * scale, dk, dv), dtypes, strict=True))
    return *of_inputs, d_band if of_band else None
