"""A fine-tuning that is killed, or that cannot write its files, continues and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from evaluated_models import save_causal, write_texts
from fresh_process import run_fresh
from posembed.errors import CheckpointError
from posembed.tuning.plan import plan_tuning
from posembed.tuning.run import TunePlan
from posembed.tuning.staging import Staging
from posembed.tuning.trainer import STATE, WEIGHTS, last_checkpoint

TESTS = Path(__file__).parents[1]
CODE = f"""
import json, sys, warnings

warnings.simplefilter("default")
sys.path[:0] = ["{TESTS}", "{TESTS}/tuning"]
import killed

happened = killed.interrupted_runs(
    killed.Path("runs"),
    [100, 20_000, killed.KILL, 80_000, killed.KILL, killed.KILL],
    seed=2,
    kind="causal",
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
    assert len(kills) == 3
    assert len(errors) == 3
    assert errors[0].startswith("RunFolderError: .out.tune/settings.json cannot be written: ")
    for error in errors[1:]:
        assert error.startswith("CheckpointError: .out.tune")
        assert "cannot be written: " in error
        assert error.endswith("make room, and repeat the command; it continues from .out.tune")
    assert "PyTorch cannot write a checkpoint there; the disk may be full" in errors[2]
    assert finished == "finished: the same weights and values as without an interruption, to the last bit"


@pytest.mark.parametrize("number", range(4))
def test_a_killed_removal_leaves_the_folder_whole_or_absent(tmp_path: Path, number: int) -> None:
    staging = Staging.of(tmp_path / "out")
    staging.open()
    names = sorted([*(f"file-{number:04}" for number in range(600)), "settings.json"])
    for name in names[:-1]:
        (staging.path / name).touch()
    child = os.fork()
    if not child:
        try:
            staging.remove()
        finally:
            os._exit(0)
    while staging.path.exists() and number:  # 0: perhaps before the removal begins
        time.sleep(0.0002)
    time.sleep(0.0005 * number)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if staging.path.exists():
        assert sorted(path.name for path in staging.path.iterdir()) == names
    staging.refuse_other()
    staging.clean()
    assert {path.name for path in tmp_path.iterdir()} <= {".out.tune"}


def test_an_empty_folder_of_a_killed_run_is_no_other_run(tmp_path: Path) -> None:
    staging = Staging.of(tmp_path / "out")
    for left in ((), (".lock",), (".settings.json.0123abcd.partial",)):
        (tmp_path / ".out.tune").mkdir()
        for name in left:
            (tmp_path / ".out.tune" / name).touch()
        staging.refuse_other()
        staging.open()
        staging.refuse_other()
        staging.remove()
    (tmp_path / ".out.tune").mkdir()
    (tmp_path / ".out.tune" / "thesis.txt").touch()
    with pytest.raises(CheckpointError, match=r"\.out\.tune: not the folder of a fine-tuning; remove it yourself"):
        staging.refuse_other()


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_checkpoint_that_is_half_written_is_not_used(tmp_path: Path, kept: int) -> None:
    for step in (4, 8, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in (WEIGHTS, "optimizer.pt"):
            (tmp_path / f"checkpoint-{step}" / name).write_bytes(b"0" * 100)
    assert last_checkpoint(tmp_path) is None
    whole = json.dumps({"epoch": 1.0, "global_step": 4, "log_history": [{"step": step} for step in range(30)]})
    (tmp_path / "checkpoint-4" / STATE).write_text(whole)
    (tmp_path / "checkpoint-8" / STATE).write_text(whole.replace("4", "8", 1)[:kept])
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-12" / STATE).write_text(whole.replace(": 4", ": 12"))
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")


def test_the_folder_stays_while_another_process_has_it(tmp_path: Path) -> None:
    staging = Staging.of(tmp_path / "out")
    with staging.locked():
        staging.open()
    with staging.locked():
        staging.end()
        assert (tmp_path / ".out.tune" / "settings.json").exists()
    staging.end()
    assert not list(tmp_path.iterdir())
    staging.end()


def test_a_folder_that_is_still_new_is_not_left(tmp_path: Path) -> None:
    staging = Staging.of(tmp_path / "out")
    with pytest.raises(ZeroDivisionError), staging.locked():
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def planned(**settings: int) -> TunePlan:
    return plan_tuning("model", "out", "texts", {"length": 48, "batch": 2, "steps": 1, **settings}, device="cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("model"), positions=24)
    write_texts(Path("texts"), number=30, words=60)
    return tmp_path


def test_a_process_that_began_before_another_ended_trains_nothing_again(folder: Path) -> None:
    first, second = planned(), planned()
    first.run()
    between, seen = planned(), list[str]()
    first.finish()
    for late in (second, between):
        with pytest.raises(CheckpointError, match=r"out.*: it exists; choose another OUT"):
            late.run(lambda name, done, total: seen.append(name))
    assert seen == []
    assert sorted(path.name for path in folder.iterdir()) == ["model", "out", "out-at-24", "texts"]


@pytest.mark.parametrize("place", ["out", "out-at-24"])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_appears_at_out_stays_and_so_does_the_trained_model(folder: Path, place: str, kind: str) -> None:
    def appear(name: str, done: int, total: int) -> None:
        if name == "fine-tuning at 48":
            {
                "folder": lambda: Path(place).mkdir(exist_ok=True),
                "file": lambda: Path(place).write_text("mine"),
                "link": lambda: os.path.lexists(place) or Path(place).symlink_to("nowhere"),
            }[kind]()

    with pytest.raises(CheckpointError, match=rf"{place}: something else .* it continues from .out.tune"):
        planned().run(appear)
    Path(place).rename("moved")
    plan, seen = planned(), list[str]()
    plan.run(lambda name, done, total: seen.append(name))
    assert not any("fine-tuning" in name for name in seen)
    plan.finish()
    assert (folder / "out" / "posembed.json").exists()
    assert (folder / "out-at-24" / "posembed.json").exists()


@pytest.mark.parametrize("cut", [1, 30, 500])
def test_a_measurement_that_is_half_written_is_repeated(folder: Path, cut: int) -> None:
    whole = planned().run()
    kept = Path(".out.tune/evaluations.jsonl")
    content = kept.read_bytes()
    kept.write_bytes(content[:-cut])
    assert planned().run().evaluation == whole.evaluation
    assert sorted(kept.read_bytes().splitlines()) == sorted(content.splitlines())
