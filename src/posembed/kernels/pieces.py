"""The implementation for CPUs: the definition, applied to pieces that stay in the cache.

The first touch of memory costs several times the work done in it, so the output is the only tensor of its size.
The backward pass recomputes the sum of rows instead of keeping it, and adds up each piece's gradients in one
order, which makes them the same on every run. Sums are in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from posembed.kernels.dropout import draw_keep, generator_of
from posembed.kernels.memory import on_large_pages
from posembed.kernels.plain import Request, drop, normalized, sum_of_rows

PIECE = 1 << 19
"""The number of elements in a piece, 2 MiB in float32. A few such tensors exist at once and stay in a shared
cache; much smaller pieces spend their time waiting for threads to meet."""


def forward(request: Request) -> Tensor:
    """Computes the lookup: (B, L, D)."""
    out = on_large_pages(request.tokens.new_empty(request.shape, dtype=request.dtype))
    generator = None if request.seed is None else generator_of(request.seed)
    for part in parts(request):
        piece = request.part(*part)
        x = normalized(sum_of_rows(piece), piece)
        if generator is not None:
            x = drop(x, draw_keep(generator, piece.shape, request.dropout, x.dtype), request.dropout)
        out[part] = x
    return out


def parts(request: Request) -> Iterator[tuple[slice, slice]]:
    """Yields the batch and length slices of each piece, in the order of rows: whole sequences, or parts of one."""
    batch, length, dim = request.shape
    rows = max(1, PIECE // max(1, dim))
    for first in range(0, batch, max(1, rows // max(1, length))):
        sequences = slice(first, min(batch, first + max(1, rows // max(1, length))))
        for start in range(0, length, rows):
            yield sequences, slice(start, min(length, start + rows))


def backward(grad: Tensor, request: Request, wanted: Sequence[bool], *, sparse: bool) -> list[Tensor | None]:
    """Returns the wanted gradients of tokens, positions, types, weight and bias; None for the others.

    Args:
        grad: the gradient of the lookup's result, (B, L, D).
        sparse: return the gradient of each token's row, (B, L, D), instead of that of the token table.
    """
    r = request
    wide = torch.promote_types(r.dtype, torch.float32)
    tokens_wanted, positions_wanted, types_wanted, weight_wanted, bias_wanted = wanted
    tokens = _TokenSums(r, wide, sparse=sparse) if tokens_wanted else None
    positions = _zeros(r.positions, wide) if positions_wanted else None
    types = _zeros(r.types, wide) if types_wanted else None
    weight = _zeros(r.weight, wide) if weight_wanted else None
    bias = _zeros(r.bias, wide) if bias_wanted else None
    generator = None if r.seed is None else generator_of(r.seed)

    for part in parts(r):
        piece = r.part(*part)
        dy = grad[part].to(wide)
        if generator is not None:
            dy = drop(dy, draw_keep(generator, piece.shape, r.dropout, wide), r.dropout)
        dx, d_weight, d_bias = _through_norm(dy, piece)
        if weight is not None and d_weight is not None:
            weight += d_weight
        if bias is not None and d_bias is not None:
            bias += d_bias
        if positions is not None:
            _add_positions(positions, dx, piece, part[1])
        if types is not None:
            _add_types(types, dx, piece)
        if tokens is not None:
            tokens.add(dx, part)

    if positions is not None and r.position_padding_idx is not None and r.position_ids is not None:
        positions[r.position_padding_idx] = 0
    return [
        None if tokens is None else tokens.gradient(),
        *(
            None if sums is None or table is None else sums.to(table.dtype)
            for sums, table in ((positions, r.positions), (types, r.types), (weight, r.weight), (bias, r.bias))
        ),
    ]


def _zeros(like: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if like is None else like.new_zeros(like.shape, dtype=dtype)


def _through_norm(dy: Tensor, piece: Request) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Computes the gradients of the sum of rows, weight and bias from that of the norm's result."""
    if piece.norm == "none":
        return dy, None, None
    x = sum_of_rows(piece).to(dy.dtype)
    weight = None if piece.weight is None else piece.weight.to(dy.dtype)
    if piece.norm == "layer":
        bias = None if piece.bias is None else piece.bias.to(dy.dtype)
        _, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, piece.eps)
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, x.shape[-1:], mean, rstd, weight, bias, [True, weight is not None, bias is not None]
        )
    rstd = (x.square().mean(-1, keepdim=True) + piece.eps).rsqrt()
    unit = x * rstd
    d_weight = None if weight is None else (dy * unit).sum((0, 1))
    d_unit = dy if weight is None else dy * weight
    return rstd * (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True)), d_weight, None


def _add_positions(sums: Tensor, dx: Tensor, piece: Request, length: slice) -> None:
    ids = piece.position_ids
    if ids is None:
        sums[length] += dx.sum(0)
    elif ids.dim() == 1:
        sums.index_add_(0, ids, dx.sum(0))
    else:
        sums.index_add_(0, ids.flatten(), dx.flatten(0, 1))


def _add_types(sums: Tensor, dx: Tensor, piece: Request) -> None:
    if piece.type_ids is None:
        sums[0] += dx.sum((0, 1))
    else:  # a piece has many rows of few types: adding them up separately first rounds less
        sums += torch.zeros_like(sums).index_add_(0, piece.type_ids.flatten(), dx.flatten(0, 1))


class _TokenSums:
    """The gradient of the token table, summed row by row: in place, or in a wider tensor for a narrow dtype."""

    def __init__(self, request: Request, wide: torch.dtype, *, sparse: bool) -> None:
        self.request = request
        self.sparse = sparse
        table = request.tokens
        if sparse:
            self.sums = on_large_pages(table.new_empty(request.shape))
            return
        self.rows: Tensor | None = None
        self.ids = request.token_ids
        if table.dtype != wide:
            self.rows, self.ids = request.token_ids.unique(return_inverse=True)
        shape = (len(table if self.rows is None else self.rows), table.shape[1])
        self.sums = on_large_pages(table.new_empty(shape, dtype=wide)).zero_()

    def add(self, dx: Tensor, part: tuple[slice, slice]) -> None:
        if self.request.scale != 1:
            dx = dx * self.request.scale
        if self.sparse:
            self.sums[part] = dx
        else:
            self.sums.index_add_(0, self.ids[part].flatten(), dx.flatten(0, 1))

    def gradient(self) -> Tensor:
        table, padding_idx = self.request.tokens, self.request.padding_idx
        gradient = self.sums
        if self.sparse:
            if padding_idx is not None:
                gradient.masked_fill_((self.request.token_ids == padding_idx)[..., None], 0)
            return gradient
        if self.rows is not None:
            gradient = on_large_pages(table.new_empty(table.shape)).zero_()
            gradient[self.rows] = self.sums.to(table.dtype)
        if padding_idx is not None:
            gradient[padding_idx] = 0
        return gradient
