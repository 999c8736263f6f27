"""Fine-tunings that are killed again and again, each in a process of its own, compared with one that is not.

    PYTHONPATH=src:tests python -m tuning.killed --kills 10

The processes are forks of this one, which has one thread and has imported everything.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluated_models import save_causal, save_encoder, write_texts
from posembed.errors import PosEmbedError
from posembed.evaluation.runnable import open_runnable
from posembed.tuning import trainer
from posembed.tuning.plan import tune_checkpoint

SETTINGS: dict[str, Any] = {"length": 48, "batch": 2, "learning_rate": 0.01, "steps": 6}
OUTS = ("out", "out-at-24")


def tune(on_step: Callable[[str, int], None] = lambda name, done: None, **others: Any) -> dict[str, Any]:
    tuned = tune_checkpoint(
        "model",
        "out",
        "texts",
        device="cpu",
        progress=lambda name, done, total: on_step(name, done),
        **SETTINGS,
        **others,
    )
    return tuned.to_dict()


class Ended(NamedTuple):
    """How a process ended. seen: the steps that it reported. last: what it returned or printed."""

    status: int
    seen: list[str]
    last: str


def in_a_fork(
    folder: Path, run: Callable[[Callable[[str, int], None]], Any], *, stop: Callable[[list[str]], int]
) -> Ended:
    """Runs a function in a fork. stop: a function of the reported steps, which returns the signal to send, or 0."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.chdir(folder)
            result = run(lambda name, done: os.write(write, f"{name} {done}\n".encode()) and None)
            os.write(write, f"= {json.dumps(result)}\n".encode())
            status = 0
        except PosEmbedError as error:
            os.write(write, f"= {type(error).__name__}: {error}\n".encode())
            status = 2
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            os.write(write, f"= {traceback.format_exc()!r}\n".encode())
        os._exit(status)
    os.close(write)
    seen, last = list[str](), ""
    with os.fdopen(read) as pipe:
        for line in pipe:
            if line.startswith("= "):
                last = line[2:].strip()
                continue
            seen.append(line.strip())
            if number := stop(seen):
                os.kill(child, number)
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen, last)


def never(seen: list[str]) -> int:
    return 0


def prepare(folder: Path, kind: str) -> None:
    """Writes the model and the texts. Does once what each fork would do, such as importing the model's code."""
    torch.set_num_threads(1)
    {"causal": save_causal, "sentences": save_encoder}[kind](folder / "model", positions=24)
    write_texts(folder / "texts", number=30, words=100)
    open_runnable(folder / "model").model("cpu")
    gc.freeze()


def weights(folder: Path) -> dict[str, str]:
    return {out: hashlib.sha256((folder / out / "model.safetensors").read_bytes()).hexdigest() for out in OUTS}


KILL = None


def interrupted_runs(
    folder: Path, interruptions: Sequence[int | None], *, seed: int, kind: str, **others: Any
) -> list[str]:
    """Runs a fine-tuning once without an interruption, and once with several. Returns what happened.

    interruptions: KILL, at a random moment, or the most bytes that a file may have, which ends a process with an error.
    Raises AssertionError unless both end with the same weights, to the last bit, and the same values.
    """
    trainer.SECONDS_BETWEEN_CHECKPOINTS = 0.0  # a checkpoint after each step, so that some are killed half written
    folder, draw, happened = folder.resolve(), random.Random(seed), list[str]()
    (folder / "whole").mkdir(parents=True)
    (folder / "interrupted").mkdir()
    prepare(folder / "whole", kind)
    for name in ("model", "texts"):
        copy = shutil.copytree if (folder / "whole" / name).is_dir() else shutil.copyfile
        copy(folder / "whole" / name, folder / "interrupted" / name)
    whole = in_a_fork(folder / "whole", lambda on_step: tune(on_step, **others), stop=never)
    assert whole.status == 0, whole.last
    folder, place = folder / "interrupted", folder / "whole"
    for limit in interruptions:
        after, late = draw.randint(1, 4), draw.uniform(0, 0.03)

        def run(on_step: Any, limit: int | None = limit) -> Any:
            if limit is not KILL:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return tune(on_step, **others)

        def kill(seen: list[str], after: int = after, late: float = late) -> int:
            if len(seen) != after:
                return 0
            time.sleep(late)
            return signal.SIGKILL

        ended = in_a_fork(folder, run, stop=kill if limit is KILL else never)
        assert not any((folder / out).exists() for out in OUTS)
        if limit is KILL:
            assert ended.status == -signal.SIGKILL, ended
            found = sorted((folder / "out.tune").glob("*-steps/checkpoint-*"))
            halves = [path.name for path in found if not (path / trainer.STATE).exists()]
            happened.append(f"killed after {ended.seen[-1]!r}; half written: {', '.join(halves) or 'none'}")
        else:
            assert ended.status == 2, ended
            happened.append(ended.last)
    ended = in_a_fork(folder, lambda on_step: tune(on_step, **others), stop=never)
    assert ended.status == 0, ended.last
    assert weights(folder) == weights(place)
    assert json.loads(ended.last) == json.loads(whole.last)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["model", "texts", "out.tune", *OUTS])
    return [*happened, "finished: the same weights and values as without an interruption, to the last bit"]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--kind", choices=["causal", "sentences"], default="causal")
    given = options.parse_args()
    own = {} if given.kind == "causal" else {"passage": 6, "query": 6}
    with tempfile.TemporaryDirectory() as place:
        interruptions = [KILL] * given.kills
        for line in interrupted_runs(Path(place), interruptions, seed=given.seed, kind=given.kind, **own):
            print(line)
