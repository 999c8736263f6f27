"""Large tensors on the CPU, on large pages.

What a fresh tensor of 50 MB costs is not its writing but 12,000 page faults, one for each 4 KiB. Linux, set to
"madvise" as most distributions are, gives 2 MiB pages to those who ask, and NumPy asks (for 4 MiB and more);
PyTorch does only where THP_MEM_ALLOC_ENABLE=1 is in the environment.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LARGE = 1 << 22
"""Bytes from which NumPy asks."""

ALIGNMENT = 64
"""A cache line, on which PyTorch's own tensors start."""


def fresh(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor on the device of ``like``."""
    size = math.prod(shape) * dtype.itemsize
    if not like.is_cpu or size < LARGE:
        return like.new_empty(shape, dtype=dtype)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)


def fresh_like(x: Tensor) -> Tensor:
    """An uninitialized tensor of x's shape, dtype and device, dense, its dimensions laid out in x's order."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    laid_out = fresh(tuple(x.size(dim) for dim in order), x, x.dtype)
    return laid_out.permute([order.index(dim) for dim in range(x.dim())])
