"""What must hold of positions before anything is read by them.

A check reads values, so it is an opaque op under torch.compile: it stays in the graph, and raises there what it
raises in eager mode, with the position in its message. On CUDA it waits for the values, raises on the host, and
the context survives; a lookup out of bounds would end it. An exported program has no Python to call and keeps an
assertion instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError, PositionError


def no_row(position: int, max_len: int) -> PositionError:
    """The one error for a position that a table cannot hold."""
    held = f"position {position} has no row: this table holds positions 0 to {max_len - 1} (max_len={max_len})."
    if position < 0:
        return PositionError(
            f"{held} Positions count from 0; posembed.positions.from_mask numbers the tokens of padded inputs."
        )
    return PositionError(
        f"{held} Shorten the input, lengthen the table (posembed.resize_table, posembed resize), or use an "
        "encoding without an end (RollingPositionalEmbedding, Alibi)."
    )


def require_integers(values: Tensor, name: str) -> None:
    """Raise ArgumentError unless the tensor's dtype is an integer one; bool is not."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ArgumentError(
            f"{name} must be integers; got {values.dtype}. Convert with .long() where they were made: "
            "half precision cannot tell 256 from 257, and ids come from a mask by posembed.positions.from_mask"
        )


def check_positions(position_ids: Tensor, max_len: int, *, lowest: int = 0) -> Tensor:
    """position_ids, integers of any dtype and shape -> the same as int64, each in lowest .. max_len - 1.

    Raises:
        ArgumentError: they are not integers.
        PositionError: one of them is out of range.
    """
    require_integers(position_ids, "position_ids")
    if torch.compiler.is_exporting():
        ids = position_ids.to(torch.int64)
        held = (ids >= lowest) & (ids < max_len)
        torch._assert_async(held.all(), f"a position has no row: this table holds positions 0 to {max_len - 1}")
        return ids
    if torch.compiler.is_compiling() or type(position_ids) is not Tensor or position_ids.is_meta:
        return _check_positions_op(position_ids, max_len, lowest)
    ids = position_ids.to(torch.int64)
    _raise_outside(ids, max_len, lowest)
    return ids


def _raise_outside(ids: Tensor, max_len: int, lowest: int) -> None:
    if ids.numel() == 0:
        return
    least, greatest = torch.stack(ids.aminmax()).tolist()
    if greatest >= max_len:
        raise no_row(greatest, max_len)
    if least < lowest:
        raise no_row(least, max_len)


@torch.library.custom_op("posembed::check_positions", mutates_args=())
def _check_positions_op(position_ids: Tensor, max_len: int, lowest: int) -> Tensor:
    ids = position_ids.to(torch.int64, copy=True)  # an op may not return its own input
    _raise_outside(ids, max_len, lowest)
    return ids


@_check_positions_op.register_fake
def _(position_ids: Tensor, max_len: int, lowest: int) -> Tensor:
    return torch.empty_like(position_ids, dtype=torch.int64)
