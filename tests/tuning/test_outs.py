"""What posembed tune removes and what it leaves: somebody's files, its own leftovers, and a run that is done."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import posembed
from evaluated_models import save_causal, save_encoder, save_masked, write_texts
from posembed.errors import ArgumentError, CheckpointError, PosEmbedError
from posembed.files import leftovers
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.run import TunePlan
from posembed.tuning.staging import Staging, is_own

OF_ANY: dict[str, Any] = {"length": 48, "batch": 2, "steps": 1}
SETTINGS: dict[str, Any] = {**OF_ANY, "passage": 6, "query": 6}
OUTS = ["model", "out", "out-at-24", "texts"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("model"), positions=24)
    write_texts(Path("texts"), number=24, words=60)
    return tmp_path


def planned(**others: Any) -> TunePlan:
    return plan_tuning("model", "out", "texts", {**SETTINGS, **others}, device="cpu")


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


FOREIGN: dict[str, Any] = {
    "a file": lambda path: path.write_text("mine"),
    "a link": lambda path: path.symlink_to("model"),
    "a file in it": lambda path: (path.mkdir(), (path / "thesis.txt").write_text("mine")),
    "a hidden file in it": lambda path: (path.mkdir(), (path / ".notes").write_text("mine")),
    "a lock with content": lambda path: (path.mkdir(), (path / ".lock").write_text("mine")),
    "a folder named as a lock": lambda path: (path / ".lock" / "mine").mkdir(parents=True),
    "another partial": lambda path: (path.mkdir(), (path / ".thesis.0123abcd.partial").write_text("mine")),
    "other settings": lambda path: (path.mkdir(), (path / "settings.json").write_text('{"settings": 3}')),
}


@pytest.mark.parametrize("name", [".out.tune", ".out.tune.removed"])
@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_somebody_elses_stays(folder: Path, name: str, what: str) -> None:
    """Whenever it appears: before the plan, before the run, or before the removal."""
    late = planned()
    FOREIGN[what](Path(name))
    before = files(folder)
    for run in (planned, late.run):
        with pytest.raises(CheckpointError, match=rf"^{re.escape(name)}: not the folder of a .*; remove it yourself"):
            run()
        assert files(folder) == before
    Path(name).rename("moved")
    late.run()
    if name.endswith("removed"):
        Path("moved").rename(name)
        before = files(folder)
        with pytest.raises(CheckpointError, match=rf"^{re.escape(name)}: not the folder of a fine-tuning"):
            late.finish()
        assert files(folder) == before
        Path(name).rename("moved")
    late.finish()
    assert sorted(path.name for path in folder.iterdir()) == sorted([*OUTS, "moved"])


def test_a_dry_plan_removes_nothing(folder: Path) -> None:
    staging = planned().staging
    staging.open()
    staging.path.rename(staging.removed)
    before = files(folder)
    planned()
    assert files(folder) == before


@pytest.mark.parametrize("kept", [["settings.json"], ["settings.json", "resized", ".lock"], [".lock"], []])
def test_a_run_that_is_done_needs_nothing_but_the_end_of_its_removal(folder: Path, kept: list[str]) -> None:
    plan = planned()
    plan.run()
    staging = plan.staging
    staging.path.rename(staging.removed)
    posembed.files.remove(staging.removed / "seed-0-tuned")
    for path in list(staging.removed.iterdir()):
        if path.name not in kept:
            posembed.files.remove(path)
    again = planned()
    assert again.done
    with pytest.raises(CheckpointError, match=r"an earlier call has finished .* nothing is left to do"):
        tune_checkpoint("model", "out", "texts", device="cpu", **SETTINGS)
    assert sorted(path.name for path in folder.iterdir()) == OUTS
    staging.open()
    staging.path.rename(staging.removed)
    with pytest.raises(CheckpointError, match="it exists; choose another OUT"):
        planned(steps=2)
    assert staging.removed.exists()


def test_a_removal_that_is_killed_leaves_the_mark(folder: Path) -> None:
    staging = Staging.of(folder / "out")
    for number in range(6):
        staging.open()
        for name in ("a", "b", "zz"):
            (staging.path / name).mkdir()
            (staging.path / name / "weights").write_text("many")
        child = os.fork()
        if not child:
            left = number

            def remove(path: Path, original: Any = posembed.files.remove) -> None:
                nonlocal left
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                original(path)

            posembed.tuning.staging.remove = remove  # type: ignore[assignment]
            try:
                staging.remove()
            finally:
                os._exit(0)
        assert (os.waitpid(child, 0)[1] == signal.SIGKILL) == (number < 3)
        assert is_own(staging.removed) == (number < 3)
        staging.end()
        assert not staging.removed.exists()


def test_kills_while_out_is_written_leave_nothing_beside_it(folder: Path) -> None:
    """At every file that is flushed, which is where a file or a folder is about to get its name."""
    plan, number, killed = planned(), 0, True
    beside = {*OUTS, ".out.tune"}
    while killed:
        child = os.fork()
        if not child:
            left = number

            def flush_one(path: Path, original: Any = posembed.files.flush_one) -> None:
                nonlocal left
                if "whole" in str(path):
                    if not left:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left -= 1
                original(path)

            posembed.files.flush_one = flush_one
            status = 1
            try:
                plan.run()
                status = 0
            finally:
                os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, -signal.SIGKILL)
        assert {path.name for path in folder.iterdir()} <= beside
        killed, number = ended != 0, number + 3
    assert number > 3
    assert not leftovers(plan.staging.path / "whole-tuned")
    planned().run()
    plan.finish()
    assert sorted(path.name for path in folder.iterdir()) == OUTS


@pytest.mark.parametrize("save", [save_causal, save_masked, save_encoder])
def test_weights_in_a_pickle(folder: Path, save: Any) -> None:
    save(Path("pickled"), positions=24)
    path = Path("pickled/model.safetensors")
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()
    settings = {**(SETTINGS if save is save_encoder else OF_ANY), "length": 50}
    plan = plan_tuning("pickled", "out", "texts", settings, device="cpu")
    assert bool(plan.starts) == (save is not save_encoder)
    plan.estimate()
    plan.run()
    plan.finish()
    changed = load_file("out/model.safetensors")
    assert all(value.isfinite().all() for value in changed.values())


@pytest.mark.parametrize("positions", [18, 20])
def test_few_rows_start_by_a_method_that_takes_them(folder: Path, positions: int) -> None:
    save_causal(Path("small"), positions=positions)
    plan = plan_tuning("small", "out", "texts", OF_ANY, device="cpu")
    assert not plan.starts
    assert {change.how for change in plan.resize.edit.tables} == {"tile"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": None, "image_size": 48}, "image_size: only for image models; this is a sentence encoder"),
        ({"length": None, "image_size": 8}, "image_size: expected a whole number of at least 16; got 8"),
        ({"out": "."}, r"out: expected the path of a new folder"),
        ({"out": ".."}, r"out: expected the path of a new folder"),
        ({"out": "o" * 242}, "out: expected a name of at most 241 bytes; got 242"),
        ({"out": "ö" * 121}, "out: expected a name of at most 241 bytes; got 242"),
        ({"rank": 10**6}, "rank: expected a whole number of at least 1 and at most 1,024"),
        ({"steps": 10**20}, "steps: expected a whole number of at least 1 and at most 1,000,000,000"),
    ],
)
def test_refusals_in_planning(folder: Path, given: dict[str, Any], message: str) -> None:
    before = files(folder)
    arguments = {**SETTINGS, "out": "out", **given}
    with pytest.raises(ArgumentError, match=message):
        tune_checkpoint("model", arguments.pop("out"), "texts", device="cpu", **arguments)
    assert files(folder) == before


def test_the_longest_name_that_is_taken_can_be_written(folder: Path) -> None:
    out = "o" * 241
    tune_checkpoint("model", out, "texts", device="cpu", **{**SETTINGS, "train": "rows"})
    assert sorted(path.name for path in folder.iterdir()) == ["model", out, "texts"]


@pytest.mark.parametrize("when", ["planning", "measuring"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory(folder: Path, when: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise error

    place = {
        "planning": "posembed.tuning.plan.split_documents",
        "measuring": "posembed.evaluation.retrieval.RetrievalJob.count",
    }[when]
    monkeypatch.setattr(place, fail)
    with pytest.raises(PosEmbedError) as raised:
        tune_checkpoint("model", "out", "texts", device="cpu", **SETTINGS)
    said = str(raised.value)
    assert "leave out that length" not in said
    expected = "not enough memory to read" if when == "planning" else "measurement does not fit into memory; free some"
    assert expected in said
    assert (".out.tune" in said) == (when == "measuring")
    assert json.dumps(said)
