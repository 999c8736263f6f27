"""The implementation of ``lookup`` for CUDA, in Triton. Each row is summed, normalized, masked and written in one pass.

The backward pass recomputes each row and writes the gradient of its sum once. These gradients are sorted by id and
added up for each table row in a fixed order. There are no atomic additions, so no row is contended and every run gives
the same bits. Sums are in float32, or in float64 for float64 tables.
"""

# mypy: disable-error-code="no-untyped-def"
# @triton.jit compiles Triton's language, not Python: its arguments have no Python types.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from posembed.kernels.plain import STEPS, Request

MAX_WIDTH = 1 << 16
"""The widest row that one program holds."""

SEGMENT = 32
"""The number of rows that one program adds up; several programs add up a table row that was read more often."""


@triton.jit
def _rows_of(table, ids, at, rows, D, col, inside, COMPUTE: tl.constexpr):
    """Reads the table row of the id at ``at``; NaN if the table has no such row."""
    row = tl.load(ids + at).to(tl.int64)
    held = (row >= 0) & (row < rows)
    x = tl.load(table + row * D + col, mask=inside & held, other=0).to(COMPUTE)
    return tl.where(held, x, float("nan"))


@triton.jit
def _sum_of_rows(
    row, tokens, positions, types, token_ids, position_ids, type_ids, V, N, T, L, D, scale, col, inside,
    SHARED: tl.constexpr, COMPUTE: tl.constexpr, SCALED: tl.constexpr, TYPED: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Computes scale x token row + type row + position row of one token; columns past the row are 0.

    Each step is rounded to the dtype that PyTorch uses, so that lookups of any size give the same bits.
    """
    x = _rows_of(tokens, token_ids, row, V, D, col, inside, COMPUTE) * scale
    x = x.to(SCALED).to(COMPUTE)
    if types is not None:
        if type_ids is None:
            x += tl.load(types + col, mask=inside, other=0).to(COMPUTE)
        else:
            x += _rows_of(types, type_ids, row, T, D, col, inside, COMPUTE)
        x = x.to(TYPED).to(COMPUTE)
    if positions is not None:
        if position_ids is None:
            x += tl.load(positions + (row % L) * D + col, mask=inside, other=0).to(COMPUTE)
        else:
            x += _rows_of(positions, position_ids, row % L if SHARED else row, N, D, col, inside, COMPUTE)
        x = x.to(SUM).to(COMPUTE)
    return tl.where(inside, x, 0)


@triton.jit
def _unit(x, D, eps, inside, NORM: tl.constexpr):
    """Divides the row by its scale, after centering for a layer norm. Also returns the reciprocal of that scale."""
    if NORM == "layer":
        x = tl.where(inside, x - tl.sum(x, 0) / D, 0)
    rstd = 1 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
    return x * rstd, rstd


@triton.jit
def _dropped(y, seed, row, threshold, keep_scale, BLOCK: tl.constexpr):
    """Applies dropout with Philox (Salmon et al. 2011) counted by row and column, so that draws are repeatable."""
    four = row * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.randint4x(tl.load(seed), four)
    draws = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (BLOCK,)).to(tl.uint32, bitcast=True)
    return tl.where((draws >> 16) >= threshold, y * keep_scale, 0)


@triton.jit
def _forward_kernel(
    out, tokens, positions, types, token_ids, position_ids, type_ids, weight, bias, seed,
    V, N, T, L, D, scale, eps, threshold, keep_scale,
    SHARED: tl.constexpr, NORM: tl.constexpr, COMPUTE: tl.constexpr, SCALED: tl.constexpr, TYPED: tl.constexpr,
    SUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < D
    y = _sum_of_rows(
        row, tokens, positions, types, token_ids, position_ids, type_ids, V, N, T, L, D, scale, col, inside,
        SHARED, COMPUTE, SCALED, TYPED, SUM,
    )  # fmt: skip
    if NORM != "none":
        y, _ = _unit(y, D, eps, inside, NORM)
        if weight is not None:
            y *= tl.load(weight + col, mask=inside, other=0).to(COMPUTE)
        if bias is not None:
            y += tl.load(bias + col, mask=inside, other=0).to(COMPUTE)
    if seed is not None:
        y = _dropped(y.to(SUM).to(COMPUTE), seed, row, threshold, keep_scale, BLOCK)
    tl.store(out + row * D + col, y, mask=inside)


@triton.jit
def _backward_kernel(
    dx_out, weight_sums, bias_sums, grad,
    tokens, positions, types, token_ids, position_ids, type_ids, weight, bias, seed,
    V, N, T, L, D, scale, eps, threshold, keep_scale, rows, rows_each,
    SHARED: tl.constexpr, NORM: tl.constexpr, COMPUTE: tl.constexpr, SCALED: tl.constexpr, TYPED: tl.constexpr,
    SUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of each row's sum, and the gradients of weight and bias summed over this program's rows."""
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < D
    d_weight = tl.zeros((BLOCK,), COMPUTE)
    d_bias = tl.zeros((BLOCK,), COMPUTE)
    for row in range(program * rows_each, min(rows, (program + 1) * rows_each)):
        dx = tl.load(grad + row * D + col, mask=inside, other=0).to(COMPUTE)
        if seed is not None:
            dx = _dropped(dx, seed, row, threshold, keep_scale, BLOCK)
        if NORM != "none":
            x = _sum_of_rows(
                row, tokens, positions, types, token_ids, position_ids, type_ids, V, N, T, L, D, scale, col,
                inside, SHARED, COMPUTE, SCALED, TYPED, SUM,
            )  # fmt: skip
            unit, rstd = _unit(x, D, eps, inside, NORM)
            d_weight += dx * unit
            d_bias += dx
            if weight is not None:
                dx *= tl.load(weight + col, mask=inside, other=0).to(COMPUTE)
            along = tl.sum(dx * unit, 0) / D
            if NORM == "layer":
                dx = dx - tl.sum(dx, 0) / D
            dx = rstd * (dx - unit * along)
        tl.store(dx_out + row * D + col, dx, mask=inside)
    if weight is not None:
        tl.store(weight_sums + program * D + col, d_weight, mask=inside)
    if bias is not None:
        tl.store(bias_sums + program * D + col, d_bias, mask=inside)


@triton.jit
def _segments_kernel(
    sums, partial, values, order, ids, first, last, rows, D, scale,
    SEGMENT: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds up the values of one id: all of them, or the values in one block of SEGMENT entries in the sorted order.

    At most one id of a block continues from the block before, and one into the block after; their sums are partial.
    """
    at = tl.program_id(0).to(tl.int64)
    start = tl.load(first + at)
    if (at == start) | (at % SEGMENT == 0):
        col = tl.arange(0, BLOCK)
        inside = col < D
        end = tl.load(last + at)
        block = at // SEGMENT
        stop = min(end, (block + 1) * SEGMENT)
        total = tl.zeros((BLOCK,), COMPUTE)
        for place in range(at, stop):
            row = tl.load(order + place)
            total += tl.load(values + row * D + col, mask=inside, other=0).to(COMPUTE)
        if (at == start) & (stop == end):
            row = tl.load(ids + at)
            tl.store(sums + row * D + col, total * scale, mask=inside & (row >= 0) & (row < rows))
        else:
            leaves = tl.where(at == start, 1, 0)
            tl.store(partial + (2 * block + leaves) * D + col, total, mask=inside)


@triton.jit
def _joined_kernel(
    sums, partial, ids, first, last, rows, D, scale,
    SEGMENT: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds up the partial sums of an id whose values lie in several blocks, from left to right."""
    at = tl.program_id(0).to(tl.int64)
    start = tl.load(first + at)
    end = tl.load(last + at)
    block = at // SEGMENT
    if (at == start) & (end > (block + 1) * SEGMENT):
        col = tl.arange(0, BLOCK)
        inside = col < D
        total = tl.load(partial + (2 * block + 1) * D + col, mask=inside, other=0)
        for other in range(block + 1, (end + SEGMENT - 1) // SEGMENT):
            total += tl.load(partial + 2 * other * D + col, mask=inside, other=0)
        row = tl.load(ids + at)
        tl.store(sums + row * D + col, total * scale, mask=inside & (row >= 0) & (row < rows))


def forward(request: Request) -> Tensor:
    """Computes the lookup: (B, L, D)."""
    out = request.tokens.new_empty(request.shape, dtype=request.dtype)
    rows = request.token_ids.numel()
    if out.numel():
        with torch.cuda.device_of(out):
            _forward_kernel[(rows,)](out, *_arguments(request), **_constants(request))
    return out


def backward(grad: Tensor, request: Request, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Returns the wanted gradients of tokens, positions, types, weight and bias, as ``pieces.backward`` does."""
    r, tokens, positions, types = request, None, None, None
    with torch.cuda.device_of(grad):
        dx, weight, bias = _through_norm(grad.contiguous(), r)
        if wanted[0] and r.sparse:
            tokens = dx * r.scale
            if r.padding_idx is not None:
                tokens.masked_fill_((r.token_ids == r.padding_idx)[..., None], 0)
        elif wanted[0]:
            tokens = _sums_by_id(dx, r.token_ids, r.tokens, r.padding_idx, r.scale)
        if wanted[1] and r.positions is not None:
            positions = _of_positions(dx, r.positions, r.position_ids, r.position_padding_idx)
        if wanted[2] and r.types is not None:
            types = _sums_by_id(dx, torch.zeros_like(r.token_ids) if r.type_ids is None else r.type_ids, r.types)
    return [
        None if not want or gradient is None or table is None else gradient.to(table.dtype)
        for want, gradient, table in zip(wanted, (tokens, positions, types, weight, bias), r.tables, strict=True)
    ]


def _through_norm(grad: Tensor, request: Request) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Computes the gradients of the sum of rows, (B, L, D), weight and bias from the result's gradient."""
    compute, device = torch.promote_types(request.dtype, torch.float32), grad.device
    weight, bias = (
        None if vector is None else torch.zeros_like(vector, dtype=compute) for vector in (request.weight, request.bias)
    )
    if grad.numel() == 0 or (request.norm == "none" and request.seed is None):
        return grad, weight, bias
    rows, dim = request.token_ids.numel(), grad.shape[-1]
    together = 8 * torch.cuda.get_device_properties(device).multi_processor_count if grad.is_cuda else 4
    rows_each = triton.cdiv(rows, together)
    programs = triton.cdiv(rows, rows_each)
    dx = torch.empty_like(grad)
    weight_sums, bias_sums = (
        None if vector is None else torch.empty(programs, dim, dtype=compute, device=device)
        for vector in (request.weight, request.bias)
    )
    _backward_kernel[(programs,)](
        dx, weight_sums, bias_sums, grad, *_arguments(request), rows, rows_each, **_constants(request)
    )
    weight, bias = (None if sums is None else sums.sum(0) for sums in (weight_sums, bias_sums))
    return dx, weight, bias


def _of_positions(dx: Tensor, table: Tensor, ids: Tensor | None, padding_idx: int | None) -> Tensor:
    if ids is not None and ids.dim() == 2:
        return _sums_by_id(dx, ids, table, padding_idx)
    places = dx.sum(0, dtype=torch.promote_types(dx.dtype, torch.float32))
    if ids is not None:
        return _sums_by_id(places, ids, table, padding_idx)
    return torch.cat((places, places.new_zeros(len(table) - len(places), table.shape[1])))


def _sums_by_id(
    values: Tensor, ids: Tensor, table: Tensor, padding_idx: int | None = None, scale: float = 1.0
) -> Tensor:
    """Returns the table's gradient (rows, D): the sum of ``values`` (..., D) for each id in ``ids`` (...)."""
    sums = torch.zeros_like(table, memory_format=torch.contiguous_format)
    if values.numel() == 0:
        return sums
    compute = torch.promote_types(values.dtype, torch.float32)
    ids, order = ids.flatten().sort(stable=True)
    first, last = torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)
    partial = torch.empty(2 * triton.cdiv(len(ids), SEGMENT), table.shape[1], dtype=compute, device=values.device)
    constants = dict(SEGMENT=SEGMENT, COMPUTE=_TRITON[compute], **_block(table.shape[1]))
    shape = (len(table), table.shape[1], scale)
    grid = (len(ids),)
    _segments_kernel[grid](sums, partial, values.contiguous(), order, ids, first, last, *shape, **constants)
    _joined_kernel[grid](sums, partial, ids, first, last, *shape, **constants)
    if padding_idx is not None:
        sums[padding_idx] = 0
    return sums


_TRITON = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _arguments(r: Request) -> list[Tensor | float | None]:
    """Returns the arguments of both kernels: tables, ids and numbers, all contiguous."""
    tensors = (
        r.tokens, r.positions, r.types, r.token_ids, r.position_ids, r.type_ids, r.weight, r.bias, r.seed
    )  # fmt: skip
    rows = [0 if table is None else len(table) for table in (r.tokens, r.positions, r.types)]
    keep_scale = 0.0 if r.dropout == 1 else 1 / (1 - r.dropout)
    _, length, dim = r.shape
    return [
        *(None if tensor is None else tensor.contiguous() for tensor in tensors),
        *rows, length, dim, r.scale, r.eps, round(r.dropout * STEPS), keep_scale,
    ]  # fmt: skip


def _constants(r: Request) -> dict[str, object]:
    """Returns the compile-time constants of the kernels."""
    shared = r.position_ids is not None and r.position_ids.dim() == 1
    scaled = r.tokens.dtype
    typed = scaled if r.types is None else torch.promote_types(scaled, r.types.dtype)
    dtypes = {"COMPUTE": torch.promote_types(r.dtype, torch.float32), "SCALED": scaled, "TYPED": typed, "SUM": r.dtype}
    return dict(
        SHARED=shared,
        NORM=r.norm,
        **{name: _TRITON[dtype] for name, dtype in dtypes.items()},
        **_block(r.tokens.shape[1]),
    )


def _block(dim: int) -> dict[str, int]:
    """Returns the power of 2 that holds a row, and the number of warps that share it."""
    block = max(16, triton.next_power_of_2(dim))
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16)}
