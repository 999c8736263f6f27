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


def fresh(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor on the device of ``like``."""
    size = math.prod(shape) * dtype.itemsize
    if like.is_cpu and size:
        return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(shape)
    return like.new_empty(shape, dtype=dtype)
