"""Large tensors on the CPU, on large pages.

What a fresh tensor of 50 MB costs is not its writing but 12,000 page faults, one for each 4 KiB. Linux, set to
"madvise" as most distributions are, gives 2 MiB pages to those who ask, and NumPy asks (for 4 MiB and more);
PyTorch does only where THP_MEM_ALLOC_ENABLE=1 is in the environment.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

LARGE = 1 << 22
"""Bytes from which NumPy asks."""

ALIGNMENT = 64
"""A cache line, on which PyTorch's own tensors start."""


def fresh(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor on the device of ``like``."""
    size = math.prod(shape) * dtype.itemsize
    # A dispatch mode that counts tensors, or fakes them, must see this one made.
    if not like.is_cpu or size < LARGE or _get_current_dispatch_mode() is not None:
        return like.new_empty(shape, dtype=dtype)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)


def fresh_like(x: Tensor) -> Tensor:
    """An uninitialized tensor of x's shape, dtype and device, dense, its dimensions laid out in x's order."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    laid_out = fresh(tuple(x.size(dim) for dim in order), x, x.dtype)
    return laid_out.permute([order.index(dim) for dim in range(x.dim())])


def traced() -> bool:
    """Whether operations are recorded, to be run by something else, which should see those of the definition."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def add(x: Tensor, rows: Tensor) -> Tensor:
    """x + rows; where that is large, on a CPU and as large as x, into large pages."""
    large = x.is_cpu and x.numel() * x.element_size() >= LARGE and not traced()
    alike = type(x) is Tensor and rows.dtype == x.dtype and rows.device == x.device
    if not large or not alike or torch.broadcast_shapes(x.shape, rows.shape) != x.shape:
        return x + rows
    total: Tensor = _Sum.apply(x, rows)
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, rows: Tensor) -> Tensor:
        return torch.add(x, rows, out=fresh_like(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.rows_shape = inputs[1].shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        return gradient, gradient.sum_to_size(ctx.rows_shape) if ctx.needs_input_grad[1] else None

    @staticmethod
    def jvp(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        return x + rows

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, rows: Tensor) -> tuple[Tensor, int]:
        mapped = torch.vmap(torch.add, in_dims)
        return mapped(x, rows), 0
