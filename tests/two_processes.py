"""A test file started as two gloo processes, which check what they see and end with 0."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from fresh_process import run_python
from together import asked

WORLD_SIZE = 2
WHOLE = "EVERY_CASE"
"""The environment variable that tells both processes to run every case, as --whole tells pytest."""


def is_whole() -> bool:
    return WHOLE in os.environ


def start_both(file: str, store: Path) -> None:
    """Run ``file`` as a process that becomes both; fail with what they said unless both end with 0."""
    import posembed

    folders = [str(Path(posembed.__file__).parents[1]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    environment |= {WHOLE: "yes"} if asked["whole"] else {}
    done = run_python(file, store, env=environment, together=True)
    assert done.returncode == 0, done.stdout


def fork_both(check: Callable[[int], None], file: str, store: Path) -> None:
    """``check(rank)`` in two forks of this process, which has imported everything; it must compute in one thread.

    With a GPU, autograd has threads, which no fork would have: then ``file`` is started instead.
    """
    if torch.cuda.is_available():
        start_both(file, store)
        return
    from accelerate.state import AcceleratorState, GradientState

    said = store.with_name("said")
    child = os.fork()
    if not child:
        try:
            with open(said, "w") as told:
                os.dup2(told.fileno(), 1), os.dup2(told.fileno(), 2)
                sys.stdout = sys.stderr = told
                sys.argv[1:] = [str(store)]
                AcceleratorState._reset_state(reset_partial_state=True)
                GradientState._reset_state()
                be_both(check)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told = said.read_text()
    said.unlink()
    if "autograd's threading in combination with fork" in told:  # an earlier test has started such threads
        start_both(file, store)
        return
    assert status == 0, told


def be_both(check: Callable[[int], None]) -> None:
    """What such a file does when it is started: ``check(rank)`` in two processes, inside the group of both."""
    second = os.fork()  # after the imports, which are most of the time, and before any thread
    signal.alarm(120)  # ends this process
    rank, store = int(not second), sys.argv[1]
    try:
        be_one_of_two(check, rank, store)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush(), sys.stderr.flush()
    if second:
        if status:
            os.kill(second, signal.SIGKILL)  # it would wait for this one
        status = status or os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    os._exit(status)  # PyTorch's own threads may abort an interpreter that shuts down


def be_one_of_two(check: Callable[[int], None], rank: int, store: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else accelerate warns that it sets it
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    check(rank)
    dist.barrier()  # neither leaves while the other still talks to it
    dist.destroy_process_group()
