"""A command that is ended from outside says what is kept and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fresh_process import run_python
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec

ENCODINGS = ("rope", "alibi", "none", "learned", "sinusoidal", "t5")
SMALL = "--train-length 16 --test-lengths 16,32 --layers 1 --width 8 --heads 2 --steps 600 --batch 2 --test-tokens 200"


def test_the_words_are_said_if_the_process_is_ended_and_only_then() -> None:
    for ending in ("pass", "raise SystemExit(3)", "import os; os._exit(1)", "import os; os.kill(os.getpid(), 9)"):
        code = f"with last_words('the {{last}} words\\nof it'):\n    {ending}"
        said = run_python("-c", f"from posembed.lab.runs.cluster import last_words\n{code}").stderr
        assert ("\nthe {last} words\nof it\n" in said) == ("os." in ending), ending


def descendants(process: int) -> dict[int, str]:
    """The processes below one, and their commands."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    parents = {int(pid): int(parent) for pid, parent, *_ in lines}
    below = {process}
    for _ in range(9):
        below |= {pid for pid, parent in parents.items() if parent in below}
    return {int(pid): " ".join(rest) for pid, _, *rest in lines if int(pid) in below}


def agent_of(process: int) -> int:
    """Ray's dashboard agent, without which its node goes down."""
    for pid, command in descendants(process).items():
        if command.startswith("ray::DashboardAgent") or ("dashboard/agent.py" in command.split(" --")[0]):
            return pid
    raise AssertionError(f"no agent among {descendants(process)}")


@pytest.mark.whole  # tests/lab/runs/test_cluster.py kills a worker
def test_a_ray_process_that_is_killed_ends_the_command_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line of text that comes again and again\n" * 100)
    out = tmp_path / "run"
    arguments = f"compare lengths --data {tmp_path}/text.txt --out {out} {SMALL} --on ray".split()
    command = [sys.executable, "-m", "posembed", *arguments, "--encodings", ",".join(ENCODINGS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 240
        while not list(out.glob("results/*.json")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(agent_of(process.pid), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    # Ray ends the command, or reports the node as dead first.
    assert "this command was ended from outside, as Ray does" in said or "were lost with their machines" in said
    assert f"runs are kept in {out}" in said
    assert "the same command" in said
    assert 1 <= len(RunFolder(out, LengthSpec).results()) < len(ENCODINGS)
