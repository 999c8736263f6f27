"""The function ``lookup`` and its PyTorch operator posembed::lookup, with its gradient."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posembed.arguments import explains_errors
from posembed.errors import ArgumentError
from posembed.kernels import pieces
from posembed.kernels.plain import STEPS, Norm, Request, plain
from posembed.torch_internals import a_function_mode_watches, forward_mode_is_active, transforms_are_active

if TYPE_CHECKING:
    from jaxtyping import Float, Integer


@explains_errors
def lookup(
    token_ids: Integer[Tensor, "B L"],
    tokens: Float[Tensor, "V D"],
    *,
    positions: Float[Tensor, "N D"] | None = None,
    position_ids: Integer[Tensor, "... L"] | None = None,
    types: Float[Tensor, "T D"] | None = None,
    type_ids: Integer[Tensor, "B L"] | None = None,
    scale: float = 1.0,
    norm: Norm | None = None,
    dropout: float = 0.0,
    padding_idx: int | None = None,
    position_padding_idx: int | None = None,
    sparse: bool = False,
) -> Float[Tensor, "B L D"]:
    """Computes dropout(norm(scale x token rows + type rows + position rows)): (B, L, D), in one pass over memory.

    Args:
        token_ids: (B, L), any integer dtype.
        tokens: (V, D).
        positions: (N, D). Without ``position_ids``, token l of each sequence reads row l.
        position_ids: (L,), (1, L) or (B, L), any integer dtype: the row of each token.
        types: (T, D). Without ``type_ids``, (B, L), every token is of type 0.
        norm: the norm of the sum. None means no norm.
        dropout: applied last; 0 turns it off. The probability is rounded to a multiple of 2**-16.
        padding_idx, position_padding_idx: rows that are not trained; negative numbers count from the end.
        sparse: True gives ``tokens`` a sparse gradient of the rows that were read, for large vocabularies and
            optimizers that accept it (torch.optim.SparseAdam, SGD).

    Gradients are the same on every run. With Triton on CUDA an id without a row gives a row of NaN; on a CPU it
    raises IndexError. PyTorch raises an error if a table is changed in place between forward and backward.

    Raises:
        ArgumentError: ids that are not integers, shapes that do not fit, or a padding row outside its table.

    Examples:
        >>> import torch
        >>> from posembed.kernels import Norm, lookup
        >>> tokens, positions = torch.randn(100, 64), torch.randn(512, 64)
        >>> token_ids = torch.randint(100, (2, 10))
        >>> x = lookup(token_ids, tokens, positions=positions, norm=Norm.of(torch.nn.LayerNorm(64)))
        >>> x.shape
        torch.Size([2, 10, 64])
    """
    if isinstance(scale, Tensor):
        raise ArgumentError("scale must be a number; a tensor, such as a learned one, multiplies the tokens instead")
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout is a probability, in [0, 1]; got {dropout}")
    if position_ids is not None and position_ids.dim() == 2 and position_ids.shape[0] == 1:
        position_ids = position_ids[0]
    request = Request(
        token_ids=_int64(token_ids, "token_ids"),
        tokens=tokens,
        positions=positions,
        position_ids=None if position_ids is None else _int64(position_ids, "position_ids"),
        types=types,
        type_ids=None if type_ids is None else _int64(type_ids, "type_ids"),
        weight=None if norm is None else norm.weight,
        bias=None if norm is None else norm.bias,
        scale=float(scale),
        norm="none" if norm is None else norm.kind,
        eps=0.0 if norm is None else norm.eps,
        dropout=round(dropout * STEPS) / STEPS,
        padding_idx=_row(padding_idx, tokens, "padding_idx"),
        position_padding_idx=_row(position_padding_idx, positions, "position_padding_idx"),
        sparse=sparse,
    )
    _require_shapes(request)
    if _needs_the_definition(request):
        return plain(request)
    if request.dropout:
        request = replace(request, seed=torch.randint(1 << 31, (1,), device=tokens.device))
    return _lookup(*(getattr(request, name) for name in _NAMES))


def _int64(ids: Tensor, name: str) -> Tensor:
    """Converts ids to int64: the kernels multiply them by widths, which may overflow a narrower dtype."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ArgumentError(f"{name} must be integers; got {ids.dtype}")
    return ids.to(torch.int64)


def _row(row: int | None, table: Tensor | None, name: str) -> int | None:
    """Converts a row number that may be negative to one that is not. None stays None."""
    if row is None or table is None or table.dim() != 2:
        return None
    if not -len(table) <= row < len(table):
        raise ArgumentError(f"{name} must be a row of its table, {-len(table)} .. {len(table) - 1}; got {row}")
    return row % len(table)


def _needs_the_definition(request: Request) -> bool:
    """Returns whether to run ``plain``, which consists of PyTorch's own operators, instead of this operator.

    An exported program cannot call Python. torch.func, forward-mode derivatives and tensor subclasses (DTensor)
    support only PyTorch's own operators. Autocast chooses the dtype of each operator. A device other than a
    CPU may have no kernel here. A lookup that fits in one piece, as in a decoding step, gains too little to pay for
    calling Python from the dispatcher.
    """
    tokens = request.tokens
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return True
    if request.token_ids.numel() * tokens.shape[1] <= pieces.PIECE:
        return True
    if _implementation(request) is None or torch.is_autocast_enabled(tokens.device.type):
        return True
    return (
        transforms_are_active()
        or forward_mode_is_active()
        or any(type(table) not in (Tensor, nn.Parameter) for table in request.tables if table is not None)
        or (not torch.compiler.is_compiling() and a_function_mode_watches())
    )


def _implementation(request: Request) -> Any:
    """Returns the module whose ``forward`` and ``backward`` are faster than the definition, or None."""
    if request.tokens.is_cpu:
        return pieces
    if request.tokens.is_cuda and importlib.util.find_spec("triton"):
        from posembed.kernels import triton_rows

        return triton_rows if request.tokens.shape[1] <= triton_rows.MAX_WIDTH else None
    return None


def _require_shapes(r: Request) -> None:
    if r.token_ids.dim() != 2:
        raise ArgumentError(f"token_ids must be (B, L); got {tuple(r.token_ids.shape)}")
    if r.tokens.dim() != 2:
        raise ArgumentError(f"tokens must be a table (V, D); got {tuple(r.tokens.shape)}")
    (batch, length), dim = r.token_ids.shape, r.tokens.shape[1]
    for name, table in (("positions", r.positions), ("types", r.types)):
        if table is not None and (table.dim() != 2 or table.shape[1] != dim):
            raise ArgumentError(f"{name} must be a table (rows, D={dim}) as tokens are; got {tuple(table.shape)}")
    for name, vector in (("weight", r.weight), ("bias", r.bias)):
        if vector is not None and vector.shape != (dim,):
            raise ArgumentError(f"the norm's {name} must be (D,)=({dim},); got {tuple(vector.shape)}")
    if r.norm not in ("none", "layer", "rms") or (r.norm == "rms" and r.bias is not None):
        raise ArgumentError(f"norm must be none, layer or rms (no bias); got {r.norm!r}, bias={r.bias is not None}")
    for name, ids, table in (("position", r.position_ids, r.positions), ("type", r.type_ids, r.types)):
        if ids is None:
            continue
        if table is None:
            raise ArgumentError(f"{name}_ids were given without {name}s, the table that they read")
        if ids.shape != (batch, length) and (name == "type" or ids.shape != (length,)):
            raise ArgumentError(f"{name}_ids must be (B, L)=({batch}, {length}); got {tuple(ids.shape)}")
    if r.positions is not None and r.position_ids is None and r.positions.shape[0] < length:
        raise ArgumentError(f"positions has {r.positions.shape[0]} rows for {length} tokens; pass position_ids")


# The PyTorch operator. Its arguments are the fields of a Request, one by one.

_NAMES = tuple(field.name for field in fields(Request))
_TENSORS = sum("Tensor" in field.type for field in fields(Request))  # they come first
_TABLES = tuple(_NAMES.index(name) for name in ("tokens", "positions", "types", "weight", "bias"))
_SCHEMA_TYPES = {"Tensor | None": "Tensor?", "int | None": "SymInt?"}
_ARGUMENTS = ", ".join(f"{_SCHEMA_TYPES.get(str(field.type), field.type)} {field.name}" for field in fields(Request))
_FIVE = ", ".join(["Tensor"] * len(_TABLES))


@torch.library.custom_op("posembed::lookup", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _lookup(*arguments: Any) -> Tensor:
    request = Request(*arguments)
    return _implementation(request).forward(request)


@_lookup.register_fake
def _(*arguments: Any) -> Tensor:
    request = Request(*arguments)
    return request.tokens.new_empty(request.shape, dtype=request.dtype)


@torch.library.custom_op(
    "posembed::lookup_backward", mutates_args=(), schema=f"(Tensor grad, bool[] wanted, {_ARGUMENTS}) -> ({_FIVE})"
)
def _lookup_backward(grad: Tensor, wanted: Sequence[bool], *arguments: Any) -> tuple[Tensor, ...]:
    request = Request(*arguments)
    gradients = _implementation(request).backward(grad, request, wanted)
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
        keep = (_implementation(ones).forward(ones) != 0).to(request.dtype)
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
