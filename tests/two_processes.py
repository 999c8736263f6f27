"""A test file started twice, as two gloo processes that check what they see and end with 0."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

WORLD_SIZE = 2


def start_twice(file: str, store: Path) -> None:
    """Run ``file`` as both processes; fail with what they said unless both end with 0."""
    import posembed

    folders = [str(Path(posembed.__file__).parents[1]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, file, str(rank), str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD_SIZE, "\n".join(said)


def be_one_of_two(check: Callable[[int], None]) -> None:
    """What such a file does when it is started: ``check(rank)`` inside the group of both."""
    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    check(rank)
    dist.barrier()  # neither leaves while the other still talks to it
    dist.destroy_process_group()
    os._exit(0)  # all is checked; PyTorch's own threads may abort an interpreter that shuts down
