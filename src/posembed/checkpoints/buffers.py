"""Tensors of a table's length that are not learned: position ids, type ids, causal masks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from posembed.checkpoints.found import Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.safetensors import dtype_name, values_of

NAMED_LIKE_A_BUFFER = re.compile(r"(\b|_)(pos(ition)?s?|ids?|mask|bias|tril|triu|causal|arange|index|indices)$")


def buffers_by_length(
    tensors: Tensors, lengths: Mapping[int, int], others: set[str]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the ids and masks of a model that cannot be rebuilt, by length and pattern: (key, before, after).

    lengths: a length of the table -> its new length. others: keys of tensors that are known to be something else.
    """
    for key, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if key in others or not shape or (length := lengths.get(shape[-1])) is None:
            continue
        square = len(shape) > 1 and shape[-1] == shape[-2]
        named = NAMED_LIKE_A_BUFFER.search(key) is not None
        whole = dtype_name(tensor).startswith(("I", "U", "BOOL"))
        if not (named and square) and not (whole and (square or len(shape) < 3)):
            continue
        old = values_of(tensor)
        if not named and bool((old == old.flatten()[:1]).all()):
            continue  # such as the zero points of a quantized layer
        new = resized_buffer(old, (*shape[:-2], length, length) if square else (*shape[:-1], length))
        if new is not None:
            yield key, old, new
        elif named:
            raise CheckpointError(
                f"{key}: has the length of the table, {shape[-1]}, and is neither ids nor a mask; not resized"
            )


def resized_buffer(old: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Returns the pattern of ``old`` in another shape with as many axes; None for an unknown pattern.

    The patterns: one value everywhere, counting up along the last axis, a causal triangle over the last two.
    """
    if old.numel() == 0 or old.dim() != len(shape):
        return None
    for pattern in (constant, counting, triangle) if old.dim() > 1 else (constant, counting):
        if torch.equal(pattern(old, tuple(old.shape)), old):
            return pattern(old, shape)
    return None


def constant(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    return old.flatten()[:1].expand(shape).clone()


def counting(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    first = old.flatten()[0].item()
    line = torch.arange(shape[-1], dtype=torch.float64, device=old.device) + first
    return line.to(old.dtype).expand(shape).clone()


def triangle(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Row i holds the first value up to column i, and the value of the upper corner after it."""
    kept, masked = old.flatten()[0], old[..., :1, -1:].flatten()[0]
    below = torch.ones(shape[-2:], dtype=torch.bool, device=old.device).tril()
    return torch.where(below, kept, masked).expand(shape).clone()
