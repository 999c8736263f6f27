"""What posembed tune removes and what it leaves: somebody's files, its own leftovers, and a run that is done."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import posembed
from evaluated_models import save_causal, save_encoder, save_masked, write_texts
from posembed.errors import ArgumentError, CheckpointError, RunFolderError
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.run import TunePlan, unfinished_steps
from together import asked, pairwise, together

OF_ANY: dict[str, Any] = {"length": 48, "batch": 2, "steps": 1}
SETTINGS: dict[str, Any] = {**OF_ANY, "passage": 6, "query": 6}
OUTS = ["model", "out", "out-at-24", "out.tune", "texts"]


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
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a file in it": lambda path: (path.mkdir(), (path / "thesis.txt").write_text("mine")),
    "a hidden file in it": lambda path: (path.mkdir(), (path / ".notes").write_text("mine")),
    "a lock with content": lambda path: (path.mkdir(), (path / ".lock").write_text("mine")),
    "another partial": lambda path: (path.mkdir(), (path / ".thesis.0123abcd.partial").write_text("mine")),
    "other settings": lambda path: (path.mkdir(), (path / "settings.json").write_text('{"settings": 3}')),
}


def test_what_is_somebody_elses_stays(folder: Path) -> None:
    """Whenever it appears: before the plan, or before the run."""
    late = planned()
    for what, make in FOREIGN.items():
        make(Path("out.tune"))
        before = files(folder)
        for run in (planned, late.run):
            with pytest.raises(RunFolderError, match=r"out\.tune"):
                run()
            assert files(folder) == before, what
        Path("out.tune").rename(f"moved {what}")
    Path("out.tune").mkdir()  # as a kill leaves it
    Path("out.tune/.settings.json.0123abcd.partial").touch()
    late.run()
    Path("out.tune/thesis.txt").write_text("mine")
    planned().run()
    assert Path("out.tune/thesis.txt").read_text() == "mine"
    assert set(OUTS) <= {path.name for path in folder.iterdir()}


KEPT = ("seed-0-old-steps", "seed-0-tuned-steps", "whole-tuned", "whole-old")


@pytest.mark.parametrize(("name", "finished"), pairwise(KEPT, [False, True]))
def test_what_somebody_puts_where_a_fine_tuning_is_kept_stays(folder: Path, name: str, finished: bool) -> None:
    """Under the name of an unfinished folder: during the fine-tuning, or when only OUT is missing."""
    plan = planned()
    if finished:
        plan.run()
        for place in plan.places.values():
            place.rename(f"moved {place.name}")
    else:
        plan.store.claim()
    place = plan.store.path / name
    (place / "checkpoint-1").mkdir(parents=True)
    for path in (place / "thesis.txt", place / "checkpoint-1" / "notes"):
        path.write_text("mine")
    before = files(place)
    if finished and name.endswith("steps"):
        planned().run()  # nothing is trained, so nothing is in its way
    else:
        with pytest.raises((RunFolderError, CheckpointError), match=rf"out\.tune/{name}.* move (it|its \S+) away"):
            plan.run()
    assert files(place) == before
    place.rename("moved")
    planned().run()
    assert set(OUTS) <= {path.name for path in folder.iterdir()}


def test_what_somebody_adds_to_an_unfinished_folder_stays(folder: Path) -> None:
    """While it is unfinished, and under its name later: with settings of another kind, or as a link to results."""
    plan = planned()
    plan.store.claim()
    unfinished = [unfinished_steps(plan.place(which, 0)) for which in plan.lengths]
    for each in unfinished:
        each.claim()
        for name in ("notes", "checkpoint-1-best", "checkpoint-1"):
            (each.path / name).mkdir()
    plan.run()
    for each in unfinished:
        assert {path.name for path in each.path.iterdir()} == {"notes", "checkpoint-1-best", "settings.json"}
        each.path.rename(f"moved {each.path.name}")
    Path("results/checkpoint-1").mkdir(parents=True)
    Path("results/settings.json").write_text('{"question": "tune"}')
    unfinished[0].path.symlink_to("../results")
    Path("results-of-evaluate").mkdir()
    Path("results-of-evaluate/settings.json").write_text('{"question": "evaluate"}')
    Path("results-of-evaluate").rename(unfinished[1].path)
    planned().run()
    assert Path("results/checkpoint-1").exists()
    assert (unfinished[1].path / "settings.json").exists()


def test_a_start_that_was_changed_is_refused(folder: Path) -> None:
    planned().run()
    path = Path("out.tune/resized/model.safetensors")
    save_file({key: value + 1 for key, value in load_file(path).items()}, path, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"out\.tune/resized: its files are not those that this fine-tuning wrote"
    ):
        planned().run()


@pytest.mark.parametrize("tensors", [{"other": torch.ones(3, 2)}, {"vectors": torch.ones(3, 2)}, {}])
def test_damaged_vectors_are_refused(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    plan = planned()
    plan.store.claim()
    save_file(tensors, plan.store.path / "vectors.safetensors")
    with pytest.raises(CheckpointError, match=r"vectors\.safetensors is damaged: it has no \d+ vectors; remove it"):
        plan.run()


def test_places_without_permission_are_refused_before_texts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user, whom root cannot be: a finished result is printed again, and everything else is refused."""
    with TemporaryDirectory() as base:
        monkeypatch.chdir(base)
        Path(base).chmod(0o755)
        save_encoder(Path("model"), positions=24)
        write_texts(Path("texts"), number=24, words=60)
        planned().run()
        for path in Path().rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        Path("closed").mkdir(mode=0o755)
        Path("out.tune").chmod(0o555)
        Path("begun.tune").mkdir(mode=0o700)
        own = os.geteuid()
        if own:
            Path("closed").chmod(0o555)
            Path("begun.tune").chmod(0)
        os.setresuid(own or 65534, own or 65534, own)
        try:
            assert planned().run().steps == 1
            for out, message in {
                "closed/out": "closed cannot be written: permission denied; choose another OUT",
                "begun": "begun.tune cannot be read: permission denied",
            }.items():
                with pytest.raises((CheckpointError, RunFolderError), match=message):
                    plan_tuning("model", out, "nowhere", SETTINGS, device="cpu")
        finally:
            os.setresuid(own, own, own)
            Path("begun.tune").chmod(0o700)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second disk")
def test_a_store_on_another_disk_is_refused_before_anything_is_trained(folder: Path) -> None:
    with TemporaryDirectory(dir="/dev/shm") as elsewhere:
        Path("out.tune").symlink_to(elsewhere)
        with pytest.raises(CheckpointError, match=r"out\.tune is on another disk than out, .*; move it beside OUT"):
            planned()
        assert not any(Path(elsewhere).iterdir())


@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_kills_while_out_is_written_leave_nothing_beside_it(folder: Path) -> None:
    """At every file that is flushed, which is where a file or a folder is about to get its name."""
    plan, number, killed = planned(), 0, True
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
        assert {path.name for path in folder.iterdir()} <= set(OUTS)
        killed, number = ended != 0, number + (3 if asked["whole"] else 7)
    assert number > 3
    assert {path.name for path in plan.store.path.iterdir()} == {
        *(".lock", "settings.json", "vectors.safetensors", "evaluations", "resized"),
        *("seed-0-old", "seed-0-tuned"),
    }
    planned().run()
    assert sorted(path.name for path in folder.iterdir()) == OUTS


@pytest.mark.parametrize("save", [save_causal, pytest.param(save_masked, marks=pytest.mark.whole), save_encoder])
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
    changed = load_file("out/model.safetensors")
    assert all(value.isfinite().all() for value in changed.values())


@pytest.mark.parametrize("positions", [18, pytest.param(20, marks=pytest.mark.whole)])
def test_few_rows_start_by_a_method_that_takes_them(folder: Path, positions: int) -> None:
    save_causal(Path("small"), positions=positions)
    plan = plan_tuning("small", "out", "texts", OF_ANY, device="cpu")
    assert not plan.starts
    assert {change.how for change in plan.resize.edit.tables} == {"tile"}


@together(
    ("given", "message"),
    [
        ({"length": None, "image_size": 48}, "image_size: only for image models; this is a sentence encoder"),
        ({"length": None, "image_size": 8}, "image_size: expected a whole number of at least 16; got 8"),
        ({"out": "."}, r"out: expected the path of a new folder"),
        ({"out": ".."}, r"out: expected the path of a new folder"),
        ({"out": "a\udcff"}, r"out: expected a path in UTF-8, .*; got 'a\\udcff'"),
        ({"out": "a\0b"}, r"out: expected a path; got 'a\\x00b'"),
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
