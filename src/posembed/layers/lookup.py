"""An input layer's lookups, sum, norm and dropout: the definition, and a CPU version that passes over memory once.

Touching new memory takes several times as long as computing its values. On a CPU, the operator posembed::lookup
therefore applies the definition to pieces that stay in the cache, and allocates only the output in full. The backward
pass recomputes the sum of rows instead of keeping it, and adds up the pieces' gradients in a fixed order, so that every
run gives the same gradients. Sums are in float32 or wider. Other devices run the definition, which torch.compile fuses.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.torch_internals import a_function_mode_watches, forward_mode_is_active, transforms_are_active

STEPS = 1 << 16
"""Dropout probabilities are multiples of 1 / STEPS: each element gets 16 of the 64 random bits of a draw."""

PIECE = 1 << 19
"""The number of elements in a piece, 2 MiB in float32. A few such tensors exist at once and stay in a shared
cache. With much smaller pieces, threads would spend their time waiting for each other."""

LARGE = 1 << 22
"""The size in bytes from which large pages are requested: two pages."""


@dataclass(frozen=True, eq=False)
class Request:
    """One lookup: dropout(norm(scale x token rows + type rows + position rows)), (B, L, D).

    Args:
        token_ids: (B, L), int64 like all ids.
        tokens: the token table (V, D).
        positions: the position table (N, D). Without ``position_ids``, token l of each sequence reads row l.
        position_ids: (L,) if all sequences share them, or (B, L): the row of each token.
        types: the table of token types (T, D). Without ``type_ids``, (B, L), every token is of type 0.
        weight, bias, eps: the settings of ``norm``, which is "none", "layer" or "rms".
        seed: the seed of the operator's dropout, int64 (1,). None before it is drawn, and without dropout.
        padding_idx, position_padding_idx: the index of the row of ``tokens`` and of ``positions`` that is not trained.
        sparse: True gives ``tokens`` a sparse gradient of the rows that were read.
    """

    token_ids: Tensor
    tokens: Tensor
    positions: Tensor | None = None
    position_ids: Tensor | None = None
    types: Tensor | None = None
    type_ids: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    seed: Tensor | None = None
    scale: float = 1.0
    norm: str = "none"
    eps: float = 0.0
    dropout: float = 0.0
    padding_idx: int | None = None
    position_padding_idx: int | None = None
    sparse: bool = False

    @property
    def tables(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The inputs of a lookup that have gradients: tokens, positions, types, weight and bias."""
        return self.tokens, self.positions, self.types, self.weight, self.bias

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result, to which the tables' dtypes are promoted."""
        dtype = self.tokens.dtype
        for table in (self.positions, self.types):
            dtype = dtype if table is None else torch.promote_types(dtype, table.dtype)
        return dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the result, (B, L, D)."""
        return (*self.token_ids.shape, self.tokens.shape[1])

    def part(self, batch: slice, length: slice) -> Request:
        """Returns the part of the lookup for a slice of the batch and a slice of the length."""
        positions, position_ids, type_ids = self.positions, self.position_ids, self.type_ids
        if position_ids is not None:
            position_ids = position_ids[length] if position_ids.dim() == 1 else position_ids[batch, length]
        elif positions is not None:
            positions = positions[length]
        return replace(
            self,
            token_ids=self.token_ids[batch, length],
            positions=positions,
            position_ids=position_ids,
            type_ids=None if type_ids is None else type_ids[batch, length],
        )


def lookup(request: Request) -> Tensor:
    """Computes the lookup, (B, L, D). The probability of its dropout is rounded to a multiple of 1 / STEPS."""
    request = replace(request, dropout=round(request.dropout * STEPS) / STEPS)
    if _needs_the_definition(request):
        return plain(request)
    if request.dropout:
        request = replace(request, seed=torch.randint(1 << 31, (1,), device=request.tokens.device))
    return _lookup(*(getattr(request, name) for name in _NAMES))


def _needs_the_definition(request: Request) -> bool:
    """Returns whether to run ``plain``, which consists of PyTorch's own operators, instead of posembed::lookup.

    An exported program cannot call Python. torch.func, forward-mode derivatives and tensor subclasses (DTensor)
    support only PyTorch's own operators. Autocast chooses the dtype of each operator. A lookup that fits in one piece,
    as in a decoding step, gains too little to pay for calling Python from the dispatcher.
    """
    tokens = request.tokens
    return (
        not tokens.is_cpu
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()
        or request.token_ids.numel() * tokens.shape[1] <= PIECE
        or torch.is_autocast_enabled("cpu")
        or transforms_are_active()
        or forward_mode_is_active()
        or any(type(table) not in (Tensor, nn.Parameter) for table in request.tables if table is not None)
        or (not torch.compiler.is_compiling() and a_function_mode_watches())
    )


def sum_of_rows(r: Request) -> Tensor:
    """Computes scale x token rows + type rows + position rows: (B, L, D)."""
    x = F.embedding(r.token_ids, r.tokens, padding_idx=r.padding_idx, sparse=r.sparse)
    if r.scale != 1:
        x = x * r.scale
    if r.types is not None:
        x = x + (r.types[0] if r.type_ids is None else F.embedding(r.type_ids, r.types))
    if r.positions is not None:
        if r.position_ids is None:
            x = x + r.positions[: x.shape[1]]
        else:
            x = x + F.embedding(r.position_ids, r.positions, padding_idx=r.position_padding_idx)
    return x


def normalized(x: Tensor, request: Request) -> Tensor:
    """Normalizes x (B, L, D) in x's dtype, computed in float32 or wider."""
    if request.norm == "layer":
        return F.layer_norm(x, x.shape[-1:], request.weight, request.bias, request.eps)
    if request.norm == "rms":
        return F.rms_norm(x, x.shape[-1:], request.weight, request.eps)
    return x


def generator_of(seed: Tensor) -> torch.Generator:
    """Makes a generator that starts from a seed, int64 (1,)."""
    return torch.Generator(seed.device).manual_seed(int(seed))


def draw_keep(generator: torch.Generator, shape: tuple[int, int, int], dropout: float, dtype: torch.dtype) -> Tensor:
    """Draws the next mask (B, L, D): 1 for a kept element, 0 for a dropped element. (A bool mask is far slower.)

    Rows are drawn in order, so the mask of each part of a lookup is that part of the whole mask.
    """
    *rows, dim = shape
    keep = torch.empty(shape, dtype=dtype, device=generator.device)
    draws = torch.empty((*rows, -(-dim // 4)), dtype=torch.int64, device=generator.device)
    draws.random_(-(1 << 63), None, generator=generator)  # all 64 bits
    if dropout == 1:
        return keep.zero_()
    return torch.ge(draws.view(torch.int16)[..., :dim], round(dropout * STEPS) - STEPS // 2, out=keep)


def drop(x: Tensor, keep: Tensor, dropout: float) -> Tensor:
    """Zeroes x where ``keep`` is 0 and divides it by 1 - dropout elsewhere. ``keep`` has x's shape and dtype."""
    return x * keep * (0.0 if dropout == 1 else 1 / (1 - dropout))


def plain(request: Request, keep: Tensor | None = None) -> Tensor:
    """Computes the whole lookup, (B, L, D). Without ``keep``, dropout draws from PyTorch's own generator."""
    x = normalized(sum_of_rows(request), request)
    if keep is not None:
        return drop(x, keep, request.dropout)
    return F.dropout(x, request.dropout)


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
    """Yields the batch and length slices of each piece in order: whole sequences, or a part of one sequence."""
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


# The PyTorch operator. Its arguments are the fields of a Request, one by one.

_NAMES = tuple(field.name for field in fields(Request))
_TENSORS = sum("Tensor" in field.type for field in fields(Request))  # they come first
_TABLES = tuple(_NAMES.index(name) for name in ("tokens", "positions", "types", "weight", "bias"))
_SCHEMA_TYPES = {"Tensor | None": "Tensor?", "int | None": "SymInt?"}
_ARGUMENTS = ", ".join(f"{_SCHEMA_TYPES.get(str(field.type), field.type)} {field.name}" for field in fields(Request))
_FIVE = ", ".join(["Tensor"] * len(_TABLES))


@torch.library.custom_op("posembed::lookup", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _lookup(*arguments: Any) -> Tensor:
    return forward(Request(*arguments))


@_lookup.register_fake
def _(*arguments: Any) -> Tensor:
    request = Request(*arguments)
    return request.tokens.new_empty(request.shape, dtype=request.dtype)


@torch.library.custom_op(
    "posembed::lookup_backward", mutates_args=(), schema=f"(Tensor grad, bool[] wanted, {_ARGUMENTS}) -> ({_FIVE})"
)
def _lookup_backward(grad: Tensor, wanted: Sequence[bool], *arguments: Any) -> tuple[Tensor, ...]:
    request = Request(*arguments)
    gradients = backward(grad, request, wanted)
    return tuple(request.tokens.new_empty(0) if gradient is None else gradient for gradient in gradients)


@_lookup_backward.register_fake
def _(grad: Tensor, wanted: Sequence[bool], *arguments: Any) -> tuple[Tensor, ...]:
    request = Request(*arguments)
    likes = (request.tokens.new_empty(request.shape) if request.sparse else request.tokens, *request.tables[1:])
    return tuple(
        torch.empty_like(like, memory_format=torch.contiguous_format) if want and like is not None
        else request.tokens.new_empty(0)
        for want, like in zip(wanted, likes, strict=True)
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.settings = inputs[_TENSORS:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    arguments = (*ctx.saved_tensors, *ctx.settings)
    request = Request(*arguments)
    wanted = [ctx.needs_input_grad[place] for place in _TABLES]
    gradients: Sequence[Tensor | None]
    if torch.is_grad_enabled():
        gradients = _differentiable_gradients(grad, request, wanted)
    else:
        of_tokens, *others = _lookup_backward(grad, wanted, *arguments)
        if request.sparse and wanted[0]:  # one gradient per row that was read; the ids are valid
            ids, rows = request.token_ids.flatten()[None], of_tokens.flatten(0, 1)
            of_tokens = torch.sparse_coo_tensor(ids, rows, request.tokens.shape, check_invariants=False)
        gradients = (of_tokens, *others)
    results: list[Tensor | None] = [None] * len(arguments)
    for place, want, gradient in zip(_TABLES, wanted, gradients, strict=True):
        results[place] = gradient if want else None
    return tuple(results)


def _differentiable_gradients(grad: Tensor, request: Request, wanted: list[bool]) -> list[Tensor | None]:
    """Returns the definition's gradients, which can be differentiated again, for create_graph=True."""
    keep = None
    if request.seed is not None:  # a lookup in a table of ones drops the same elements
        ones = Request(
            torch.zeros_like(request.token_ids), torch.ones_like(request.tokens[:1]),
            seed=request.seed, dropout=request.dropout,
        )  # fmt: skip
        keep = (forward(ones) != 0).to(request.dtype)
    # Aliases: two tables may be the same or depend on each other, and each needs its own gradient.
    aliases: dict[str, Any] = {
        _NAMES[place]: table.view_as(table)
        for place, table, want in zip(_TABLES, request.tables, wanted, strict=True)
        if want and table is not None
    }
    definition = plain(replace(request, **aliases), keep)
    found = iter(torch.autograd.grad(definition, list(aliases.values()), grad, create_graph=True))
    return [next(found) if want else None for want in wanted]


_lookup.register_autograd(_differentiate, setup_context=_save)


def on_large_pages(x: Tensor) -> Tensor:
    """Requests large pages for x, a new tensor, if it is large and on a Linux CPU. Returns x itself.

    A new tensor of 50 MB costs 12,000 page faults, one per 4 KiB, which take longer than writing it. Linux backs memory
    with pages of 2 MiB on request if transparent huge pages are set to "madvise", as in most distributions. The memory
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
