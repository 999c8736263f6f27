"""How much memory a step takes at its peak, counted as tensors come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(step: Callable[[], object]) -> int:
    """Bytes of all tensors made within a step at the moment when there are most; on any device.

    Counted by storage, so a view costs nothing. Memory inside a kernel that is no tensor is not seen.
    """
    counter = _Storages()
    with counter:
        kept = step()  # what a step returns is there at its end
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
                self.seen.add(tensor.untyped_storage())  # it was there before, or is counted already
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
