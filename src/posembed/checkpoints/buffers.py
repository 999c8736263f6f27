"""Tensors of a table's length that are not learned: position ids, type ids, causal masks."""

from __future__ import annotations

import torch
from torch import Tensor


def resized_buffer(old: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """The pattern of ``old`` in another shape with as many axes, or None where it follows no pattern known here.

    The patterns: one value everywhere, counting up along the last axis, a causal triangle over the last two.
    """
    if old.numel() == 0 or old.dim() != len(shape):
        return None
    for pattern in (constant, counting, triangle):
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
    """Row i holds the first value up to column i, and the value of the upper corner behind it."""
    kept, masked = old.flatten()[0], old[..., :1, -1:].flatten()[0]
    below = torch.ones(shape[-2:] if len(shape) > 1 else shape, dtype=torch.bool, device=old.device)
    below = below.tril() if len(shape) > 1 else below
    return torch.where(below, kept, masked).expand(shape).clone()
