"""Processes that add results to one folder, all made by one that has imported everything; any may be killed.

    python many_processes.py FOLDER PROCESSES RESULTS

Each prints the key of a result after it was added. A killed one is started again, and goes on as the same command
would: with what is not in the folder.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import sys
import time
from pathlib import Path

from posembed.lab.metrics import Measured, by_x
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS, WHOLE_WINDOWS, LengthSpec

KILLS = 25
SETTINGS = LengthSpec(
    question="lengths", encoding="rope", seed=0, data_sha256="0", **with_default_window(dict(Lengths.presets["quick"]))
)
BY_LENGTH = dict.fromkeys(SETTINGS.test_lengths, 1.5)
MEASURED = Measured(tuple(by_x({SAME_TOKENS: BY_LENGTH, WHOLE_WINDOWS: BY_LENGTH, REPEAT_GAIN: {8: 0.1}})))
LOSSES = tuple((step, 2.5) for step in range(100))


def work(path: Path, seeds: range, done: int) -> None:
    folder = RunFolder(path, LengthSpec)
    specs = [dataclasses.replace(SETTINGS, seed=seed) for seed in seeds]
    folder.prepare(specs[0])
    there = {result.spec for result in folder.results()}
    for spec in specs:
        if spec not in there:
            folder.add(RunResult(spec, 100, 10, None, LOSSES, MEASURED, None, 3.5, 120.0))
            os.write(done, f"{spec.key()}\n".encode())


def start(path: Path, seeds: range) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(path, seeds, sys.stdout.fileno())
        except BaseException as error:
            os.write(sys.stderr.fileno(), f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return child


def main(path: Path, processes: int, results: int) -> None:
    draw = random.Random(0)
    working = {start(path, seeds): seeds for seeds in (range(n * results, (n + 1) * results) for n in range(processes))}
    killed = 0
    while working:
        time.sleep(draw.random() * 0.02)
        if killed < KILLS:
            os.kill(draw.choice(list(working)), signal.SIGKILL)
        while working:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                break
            seeds = working.pop(child)
            if os.WIFSIGNALED(status):
                killed += 1
                working[start(path, seeds)] = seeds
            elif os.WEXITSTATUS(status):
                sys.exit(1)
    print(f"killed {killed}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
