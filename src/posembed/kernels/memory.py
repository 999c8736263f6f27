"""Large pages for large results on a CPU.

A new tensor of 50 MB costs 12,000 page faults, one per 4 KiB, which take longer than writing it. Linux backs
memory by pages of 2 MiB where it is asked to (madvise), if it is set to "madvise", as most distributions are. The
memory is PyTorch's own and so is the tensor; only the size of the pages behind it changes.
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
"""Bytes from which large pages are asked for: two of them."""


def on_large_pages(x: Tensor) -> Tensor:
    """x itself, not yet written to; on a Linux CPU its memory is backed by large pages if it is large."""
    size = x.numel() * x.element_size()
    if size >= LARGE and type(x) is Tensor and x.is_cpu and not transforms_are_active():
        start = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        _advise()(start, x.data_ptr() + size - start)
    return x


@cache
def _advise() -> Callable[[int, int], object]:
    """(address, bytes) -> asks for large pages. It is advice: where it cannot be followed, nothing changes."""
    if not sys.platform.startswith("linux"):
        return lambda start, size: None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advice = mmap.MADV_HUGEPAGE
    return lambda start, size: madvise(start, size, advice)
