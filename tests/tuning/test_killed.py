"""A fine-tuning that is killed, or that cannot write its files, continues and ends as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

from fresh_process import run_fresh

TESTS = Path(__file__).parents[1]
CODE = f"""
import json, sys, warnings

warnings.simplefilter("default")
sys.path[:0] = ["{TESTS}", "{TESTS}/tuning"]
import killed

killed.imports()
happened = killed.interrupted_runs(
    killed.Path("runs"),
    [100, 2_000, 20_000, killed.KILL, 80_000, killed.KILL, killed.KILL],
    seed=2,
    kind="causal",
    objective=killed.with_dropout,
)
print("=", json.dumps(happened))
"""


def test_interruptions_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    status, printed = run_fresh(CODE, tmp_path)
    assert status == 0, printed
    happened = json.loads(printed.splitlines()[-1].removeprefix("= "))
    *interrupted, finished = happened
    kills = [line for line in interrupted if line.startswith("killed after")]
    errors = [line for line in interrupted if line not in kills]
    print(errors)
    assert len(kills) == 3
    assert "to the last bit" in finished
