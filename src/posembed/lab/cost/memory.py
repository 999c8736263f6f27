"""The peak memory of a step, counted as tensors are created and freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(step: Callable[[], object]) -> int:
    """Returns the most bytes that tensors created within the step hold at one time, on any device.

    It counts storages, so a view costs nothing. It does not see memory that a kernel uses outside of tensors.
    """
    counter = _Storages()
    with counter:
        kept = step()  # the result counts too
    del kept
    return counter.peak


class _Storages(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self.seen.add(tensor.untyped_storage())  # it existed before the step, or is counted already
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self.seen:
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        self.seen.add(storage)
        size = storage.nbytes()
        weakref.finalize(storage, self._remove, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _remove(self, size: int) -> None:
        self.now -= size
