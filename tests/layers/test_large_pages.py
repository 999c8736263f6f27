"""Large pages are advice about memory; the tensor stays an ordinary one."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

from posembed.layers.lookup import LARGE, on_large_pages
from together import together

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@together("dtype", [torch.float32, torch.float64, torch.bfloat16])
@together("size", [0, 1, LARGE - 8, LARGE, LARGE + 8, 5 * LARGE + 24])
def test_it_is_the_same_tensor_with_its_own_storage(size: int, dtype: torch.dtype) -> None:
    x = torch.empty(size // dtype.itemsize, dtype=dtype)
    assert on_large_pages(x) is x
    assert not x._is_view()
    x.fill_(2)
    x.resize_(2 * size // dtype.itemsize)
    assert bool((x[: size // dtype.itemsize] == 2).all())


def test_tensors_without_memory_are_left_alone() -> None:
    for x in (torch.empty(LARGE, device="meta"), torch.nn.Parameter(torch.empty(LARGE))):
        assert on_large_pages(x) is x


@pytest.mark.skipif(not SETTING.exists(), reason="this kernel has no large pages")
def test_the_kernel_is_asked() -> None:
    x = on_large_pages(torch.empty(4 * LARGE, dtype=torch.uint8))
    assert "hg" in flags_of_memory_at(x.data_ptr() + 2 * LARGE)
    with mmap.mmap(-1, 4 * LARGE) as never_asked:
        address = ctypes.addressof(ctypes.c_char.from_buffer(never_asked))
        assert "hg" not in flags_of_memory_at(address + 2 * LARGE)


def flags_of_memory_at(address: int) -> list[str]:
    """The VmFlags of the mapping that holds this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(edge, 16) for edge in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"no mapping holds {address:x}")
