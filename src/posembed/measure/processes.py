"""Several processes of one command, as ``accelerate launch`` and ``torchrun`` start them.

All run the same code with the same arguments. Work for one process alone goes through ``first``, and work that each
process does for itself through ``each``. Both wait for all processes, so that an error in one ends all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that both launchers set."""
LONGEST_WAIT = timedelta(days=30)
"""How long the others wait for a process that works alone."""


@dataclass(frozen=True)
class Processes:
    """One of ``count`` processes. rank: its number; only 0 prints, shows progress, and writes shared files."""

    rank: int = 0
    count: int = 1

    def each(self, make: Callable[[], T]) -> list[T]:
        """Returns what each process makes. If one raises an error, the others exit with code 1."""
        if self.count == 1:
            return [make()]
        import torch.distributed as dist

        error, found = None, list[Any]([None] * self.count)
        try:
            own = (True, make())
        except Exception as raised:
            error, own = raised, (False, None)  # type: ignore[assignment]
        dist.all_gather_object(found, own)
        if error is not None:
            raise error
        if not all(whole for whole, _ in found):
            raise SystemExit(1)
        return [made for _, made in found]

    def first(self, make: Callable[[], T]) -> T:
        """Returns what the first process makes, in every process."""
        return self.each(lambda: make() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def any(self, holds: bool) -> bool:
        return any(self.each(lambda: holds))

    def share(self, sizes: Mapping[str, float]) -> set[str]:
        """Divides the jobs: the largest first, each to the least busy process. Returns this process's job names."""
        shares, busy = [set[str]() for _ in range(self.count)], [0.0] * self.count
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            idlest = busy.index(min(busy))
            shares[idlest].add(name)
            busy[idlest] += sizes[name]
        return shares[self.rank]

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its mean over all processes."""
        if self.count > 1:
            import torch.distributed as dist

            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.count


ALONE = Processes()


def launched() -> Processes:
    """Returns which process of a launcher this is."""
    known = all(name in os.environ for name in LAUNCHED)
    return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if known else ALONE


@contextmanager
def joined() -> Iterator[Processes]:
    """Connects the processes of a launcher, by gloo on CPUs and by NCCL on GPUs, one for each process."""
    import torch
    import torch.distributed as dist

    processes = launched()
    if processes.count == 1 or dist.is_initialized():
        yield processes
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=LONGEST_WAIT)
    try:
        yield processes
    finally:
        dist.destroy_process_group()
