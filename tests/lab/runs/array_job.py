"""An array job of three tasks in one run folder, of which one is killed in the middle and started again.

    python array_job.py FOLDER TEXT

Also runs the whole comparison in one process, in FOLDER/alone. All processes are forks of one that has imported
everything.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from posembed.comparison import prepare
from posembed.lab.runs import train

ENCODINGS = ("learned", "rope", "alibi")
STEPS, KILLED_AT = 12, 7
SIZES: dict[str, Any] = {
    **{"layers": 1, "width": 16, "heads": 2, "train_length": 8, "test_lengths": (8, 16), "test_tokens": 64},
    **{"steps": STEPS, "batch": 2, "warmup": 1, "tokenizer": "bytes", "device": "cpu", "seeds": 1},
}


def start(out: Path, text: Path, encodings: tuple[str, ...], *, killed: bool = False) -> int:
    child = os.fork()
    if child:
        return child

    def progress(name: str, done: int, total: int) -> None:
        if killed and done == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    train.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    prepare("lengths", {"encodings": encodings, "data": text, "out": out, **SIZES}).run(progress)
    os._exit(0)


def ended(*children: int) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder: Path, text: Path) -> None:
    shared = folder / "shared"
    tasks = [start(shared, text, (name,), killed=name == ENCODINGS[0]) for name in ENCODINGS]
    assert ended(*tasks) == [-signal.SIGKILL, 0, 0]
    assert len([*(shared / "results").iterdir()]) == len(ENCODINGS) - 1
    assert ended(start(shared, text, ENCODINGS[:1])) == [0]
    assert ended(start(folder / "alone", text, ENCODINGS)) == [0]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
