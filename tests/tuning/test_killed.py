"""A fine-tuning that is killed or cannot write continues, and ends as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

from fresh_process import run_fresh

TESTS = Path(__file__).parents[1]


def run_killed(call: str, folder: Path) -> list[str]:
    """Runs a function of ``killed`` in a process that has imported torch, and does nothing else."""
    code = f"import json, sys, warnings; sys.path[:0] = ['{TESTS}', '{TESTS}/tuning']; warnings.simplefilter('default'); "
    code += f"import killed; killed.imports(); found = killed.{call}; print('=', json.dumps(found))"
    status, printed = run_fresh(code, folder)
    assert status == 0, printed
    return json.loads(printed.splitlines()[-1].removeprefix("= "))


def test_kills_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    call = "killed_runs(killed.Path('runs'), kills=3, seed=2, kind='causal', objective=killed.with_dropout)"
    *kills, finished = run_killed(call, tmp_path)
    assert len(kills) == 3
    assert "to the last bit" in finished


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    errors = run_killed("limited_runs(killed.Path('runs'), [100, 2_000, 20_000, 60_000], passage=6)", tmp_path)
    print(errors)
    assert 0
