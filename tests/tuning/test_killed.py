"""A fine-tuning that is killed, or that cannot write its files, continues and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from evaluated_models import save_causal, write_texts
from posembed.errors import CheckpointError
from posembed.tuning.plan import plan_tuning
from posembed.tuning.run import TunePlan
from posembed.tuning.trainer import PICKLES, STATE, WEIGHTS, last_checkpoint
from together import pairwise
from tuning.killed import KILL, interrupted_runs


@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_interruptions_leave_no_trace_in_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posembed.tuning.trainer.SECONDS_BETWEEN_CHECKPOINTS", 0.0)  # interrupted_runs changes it
    happened = interrupted_runs(tmp_path / "runs", [100, 20_000, KILL, 80_000, KILL, KILL], seed=2, kind="causal")
    *interrupted, finished = happened
    kills = [line for line in interrupted if line.startswith("killed after")]
    errors = [line for line in interrupted if line not in kills]
    assert len(kills) == 3
    assert len(errors) == 3
    assert errors[0].startswith("RunFolderError: out.tune/settings.json cannot be written: ")
    for error in errors[1:]:
        assert error.startswith("CheckpointError: out.tune")
        assert "cannot be written: " in error
        assert error.endswith("make room, and repeat the command; it continues from out.tune")
    assert "PyTorch cannot write a checkpoint there; the disk may be full" in errors[2]
    assert finished == "finished: the same weights and values as without an interruption, to the last bit"


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_checkpoint_that_is_half_written_is_not_used(tmp_path: Path, kept: int) -> None:
    for step in (4, 8, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file({"rows": torch.randn(4, 2)}, tmp_path / f"checkpoint-{step}" / WEIGHTS)
        for name in PICKLES:
            torch.save({"step": torch.tensor(step)}, tmp_path / f"checkpoint-{step}" / name)
    assert last_checkpoint(tmp_path) is None
    whole = json.dumps({"epoch": 1.0, "global_step": 4, "log_history": [{"step": step} for step in range(30)]})
    (tmp_path / "checkpoint-4" / STATE).write_text(whole)
    (tmp_path / "checkpoint-8" / STATE).write_text(whole.replace("4", "8", 1)[:kept])
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-12" / STATE).write_text(whole.replace(": 4", ": 12"))
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")
    for name in (*PICKLES, WEIGHTS):  # as a power failure leaves them
        file = tmp_path / "checkpoint-12" / name
        content = file.read_bytes()
        for size in (0, 20, len(content) - 1):
            file.write_bytes(content[:size])
            assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4"), (name, size)
        file.unlink()
        assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4"), name
        file.write_bytes(content)


def planned(**settings: int) -> TunePlan:
    return plan_tuning("model", "out", "texts", {"length": 48, "batch": 2, "steps": 1, **settings}, device="cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("model"), positions=24)
    write_texts(Path("texts"), number=30, words=60)
    return tmp_path


def test_a_finished_run_is_returned_again(folder: Path) -> None:
    """Also by a process that planned before the first one began. An OUT that was moved away is written again."""
    first, late, seen = planned(), planned(), list[str]()
    tuned = first.run()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for plan in (late, planned()):
        assert plan.run(lambda name, done, total: seen.append(name)).evaluation == tuned.evaluation
    assert seen == []
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.move("out", "moved")
    planned().run()
    assert Path("out/model.safetensors").read_bytes() == Path("moved/model.safetensors").read_bytes()
    weights = Path("out.tune/seed-0-old/model.safetensors")
    kept = weights.read_bytes()
    weights.write_bytes(Path("out/model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="seed-0-old: its files are not those that this fine-tuning wrote"):
        planned().run()
    weights.write_bytes(kept)
    planned().run()
    shutil.rmtree("out.tune")
    with pytest.raises(CheckpointError, match="it exists; choose another OUT"):
        planned()


@pytest.mark.parametrize(("place", "kind"), pairwise(["out", "out-at-24"], ["folder", "file", "link"]))
def test_what_appears_at_out_stays_and_so_does_the_trained_model(folder: Path, place: str, kind: str) -> None:
    def appear(name: str, done: int, total: int) -> None:
        if name == "fine-tuning at 48":
            {
                "folder": lambda: Path(place).mkdir(exist_ok=True),
                "file": lambda: Path(place).write_text("mine"),
                "link": lambda: os.path.lexists(place) or Path(place).symlink_to("nowhere"),
            }[kind]()

    with pytest.raises(CheckpointError, match=rf"{place}: something else .* it continues from out.tune"):
        planned().run(appear)
    Path(place).rename("moved")
    plan, seen = planned(), list[str]()
    plan.run(lambda name, done, total: seen.append(name))
    assert not any("fine-tuning" in name for name in seen)
    assert (folder / "out" / "posembed.json").exists()
    assert (folder / "out-at-24" / "posembed.json").exists()
