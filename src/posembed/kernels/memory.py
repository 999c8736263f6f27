"""Large pages for large results on a CPU.

A new tensor of 50 MB costs 12,000 page faults, one per 4 KiB, which take longer than writing it. Linux backs
memory with pages of 2 MiB on request (madvise) if it is set to "madvise", as in most distributions. The memory and
the tensor remain PyTorch's own; only the size of the pages behind it changes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

from torch import Tensor

from posembed.torch_internals import transforms_are_active

LARGE = 1 << 22
"""The number of bytes from which large pages are requested: two pages."""


def on_large_pages(x: Tensor) -> Tensor:
    """Returns x itself, not yet written to; on a Linux CPU, large pages back its memory if it is large."""
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
