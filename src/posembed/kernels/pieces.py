"""The implementation of ``lookup`` for CPUs: the definition in plain.py, applied to pieces that stay in the cache.

Touching new memory takes several times as long as computing its values, so only the output is allocated in full.
The backward pass recomputes the sum of rows instead of keeping it, and adds up the pieces' gradients in a fixed order,
so that they are the same on every run. Sums are in float32 or wider.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from posembed.kernels.plain import Request, draw_keep, drop, generator_of, normalized, sum_of_rows
from posembed.torch_internals import transforms_are_active

PIECE = 1 << 19
"""The number of elements in a piece, 2 MiB in float32. A few such tensors exist at once and stay in a shared
cache. With much smaller pieces, threads would spend their time waiting for each other."""

LARGE = 1 << 22
"""The size in bytes from which large pages are requested: two pages."""


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


def backward(grad: Tensor, request: Request, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Returns the gradients of tokens, positions, types, weight and bias, or None for each that is not ``wanted``.

    The gradient of tokens is (V, D), or one row per token, (B, L, D), if the request is sparse.

    Args:
        grad: the gradient of the lookup's result, (B, L, D).
    """
    r = request
    wide = torch.promote_types(r.dtype, torch.float32)
    ids, read, tokens = r.token_ids, None, None
    if wanted[0] and r.sparse:
        tokens = on_large_pages(r.tokens.new_empty(r.shape))
    elif wanted[0]:
        if r.tokens.dtype != wide:  # only the rows that are read are summed in the wide dtype
            read, ids = ids.unique(return_inverse=True)
        shape = (len(r.tokens if read is None else read), r.tokens.shape[1])
        tokens = on_large_pages(r.tokens.new_empty(shape, dtype=wide)).zero_()
    positions, types, weight, bias = (
        table.new_zeros(table.shape, dtype=wide) if want and table is not None else None
        for want, table in zip(wanted[1:], r.tables[1:], strict=True)
    )
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
            dx = dx if r.scale == 1 else dx * r.scale
            if r.sparse:
                tokens[part] = dx
            else:
                tokens.index_add_(0, ids[part].flatten(), dx.flatten(0, 1))

    if tokens is not None and read is not None:
        sums, tokens = tokens, on_large_pages(r.tokens.new_empty(r.tokens.shape)).zero_()
        tokens[read] = sums.to(tokens.dtype)
    if tokens is not None and r.padding_idx is not None:
        tokens[r.token_ids == r.padding_idx if r.sparse else r.padding_idx] = 0
    if positions is not None and r.position_padding_idx is not None and r.position_ids is not None:
        positions[r.position_padding_idx] = 0
    return [tokens] + [
        None if sums is None or table is None else sums.to(table.dtype)
        for sums, table in zip((positions, types, weight, bias), r.tables[1:], strict=True)
    ]


def _through_norm(dy: Tensor, piece: Request) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Computes the gradients of the sum of rows, weight and bias from the gradient of the norm's result."""
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


def on_large_pages(x: Tensor) -> Tensor:
    """Requests large pages for x, a new tensor, if it is large and on a Linux CPU. Returns x itself.

    A new tensor of 50 MB costs 12,000 page faults, one per 4 KiB, which take longer than writing it. Linux backs
    memory with pages of 2 MiB on request (madvise) if it is set to "madvise", as in most distributions. The memory
    and the tensor remain PyTorch's own; only the size of the pages behind it changes.
    """
    size = x.numel() * x.element_size()
    if size >= LARGE and type(x) is Tensor and x.is_cpu and not transforms_are_active():
        start = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        _advise()(start, x.data_ptr() + size - start)
    return x


@cache
def _advise() -> Callable[[int, int], object]:
    """Returns a function (address, bytes) that requests large pages. If that fails, nothing changes."""
    if not sys.platform.startswith("linux"):
        return lambda start, size: None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advice = mmap.MADV_HUGEPAGE
    return lambda start, size: madvise(start, size, advice)
