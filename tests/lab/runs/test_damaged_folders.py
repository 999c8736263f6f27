"""Whatever stands where a run folder should be, and whatever happens to it meanwhile: one line, no traceback."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from click.testing import CliRunner

from fresh_process import run_python
from made_up_runs import runs as made_up_runs
from made_up_runs import save as write_runs
from posembed.cli import app
from posembed.errors import PosEmbedError, RunFolderError
from posembed.lab.runs.results import RunFolder
from posembed.lab.runs.sweep import sweep
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec
from together import pairwise, together

BROKEN = {
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "a text": b'"lengths"',
    "a number": b"1",
    "no question": b"{}",
    "a list of questions": b'{"question": ["lengths"]}',
    "an object of questions": b'{"question": {}}',
    "an unknown question": b'{"question": "of the user"}',
    "nested too deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe{}",
    "half a character": b'{"question": "\\ud800"}',
    "no other settings": b'{"question": "lengths"}',
}


def refused(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(done.exception, PosEmbedError), (arguments, done.exception)
    return str(done.exception)


def everything_refuses(folder: Path, text: Path) -> None:
    refused("report", folder)
    refused("advise", "--length", "8", "--runs", folder)
    refused("compare", "lengths", "--data", text, "--out", folder, "--encodings", "rope", "--preset", "quick")
    refused("compare", "cost", "--out", folder, "--encodings", "rope")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("a line of text that comes again and again\n" * 300, encoding="utf-8")
    return file


@together("what", BROKEN)
def test_any_settings_are_read_or_refused(what: str, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "settings.json").write_bytes(BROKEN[what])
    everything_refuses(folder, text)
    assert (folder / "settings.json").read_bytes() == BROKEN[what]


def test_what_is_no_folder(text: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a" / "settings.json").mkdir(parents=True)
    for folder in (text, text / "below", tmp_path / "loop", tmp_path / "a", tmp_path / ("n" * 300)):
        everything_refuses(folder, text)


@together("what", BROKEN)
def test_any_result_is_read_or_refused(what: str, tmp_path: Path) -> None:
    write_runs(tmp_path, made_up_runs())
    next((tmp_path / "results").iterdir()).write_bytes(BROKEN[what])
    assert "is not a run" in refused("report", tmp_path)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every number and text in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        yield path
    for name, held in inside or ():
        yield from places_in(held, (*path, name))


@together("other", [[], {}, [1], {"1": 1}], usual=bool)
def test_a_value_of_another_type_is_refused_wherever_it_is(other: Any, tmp_path: Path) -> None:
    write_runs(tmp_path, made_up_runs())
    file = next((tmp_path / "results").iterdir())
    text = file.read_text(encoding="utf-8")
    for path in places_in(json.loads(text)):
        values = held = json.loads(text)
        for name in path[:-1]:
            held = held[name]
        held[path[-1]] = other
        file.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(RunFolderError, match=re.escape(str(file))):
            RunFolder(tmp_path, LengthSpec).results()


@together("what", BROKEN)
def test_any_cost_is_read_or_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_bytes(BROKEN[what])
    assert "not a run folder of this version" in refused("report", tmp_path)
    assert "has no settings.json); move its cost.json" in refused(
        "compare", "cost", "--out", tmp_path, "--encodings", "rope"
    )
    (tmp_path / "settings.json").write_text('{"question": "cost"}')
    assert "cannot be read" in refused("report", tmp_path)
    assert (tmp_path / "cost.json").read_bytes() == BROKEN[what]


def test_a_folder_that_goes_away(
    tmp_path: Path, task: LanguageModelling, spec: LengthSpec, accelerator: Accelerator
) -> None:
    specs = [dataclasses.replace(spec, encoding="learned")]
    folder = RunFolder(tmp_path / "runs", LengthSpec)
    for what in (
        lambda: shutil.rmtree(folder.path),
        lambda: folder.path.rename(tmp_path / "moved"),
        lambda: (shutil.rmtree(folder.path), folder.path.write_text("")),
    ):
        with pytest.raises(RunFolderError, match=r"cannot be (written|read)"):
            sweep(specs, task, folder, accelerator, lambda name, done, total, what=what: done or what())
        folder.path.unlink() if folder.path.is_file() else None


@pytest.mark.parametrize("most", [300, 10_000])
def test_a_disk_that_is_full(most: int, text: Path, tmp_path: Path) -> None:
    """No file may grow above some bytes: settings, table, result or checkpoint do not fit."""
    sizes = "--steps 2 --layers 1 --width 16 --heads 2 --train-length 8 --test-lengths 8,16 --test-tokens 64"
    command = ["compare", "lengths", "--data", str(text), "--out", str(tmp_path / "runs"), *sizes.split()]
    limited = (
        "import resource, sys; from posembed.cli import main; sys.argv[0] = 'posembed'; "
        "sys.dont_write_bytecode = True; "  # half of a module that Python compiles would be kept
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); main()"
    )
    done = run_python("-c", limited, *command)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be written: File too large; make room" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("command", ["encodings", "--version"])
def test_an_output_that_is_full(command: str) -> None:
    done = run_python("-m", "posembed", command, stdout="/dev/full")
    assert (done.returncode, done.stderr) == (1, "posembed: error: the output cannot be written: the disk is full\n")


@pytest.mark.parametrize(("number", "step"), pairwise([signal.SIGINT, signal.SIGTERM], [0, 5, 11]))
def test_a_signal_in_a_step_that_fails_is_not_lost(
    number: int,
    step: int,
    tmp_path: Path,
    task: LanguageModelling,
    spec: LengthSpec,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, steps = RunFolder(tmp_path, LengthSpec), iter(range(99))

    def loss(*arguments: Any) -> torch.Tensor:
        if next(steps) == step:
            os.kill(os.getpid(), number)
            return LanguageModelling.loss(task, *arguments) * float("nan")
        return LanguageModelling.loss(task, *arguments)

    monkeypatch.setattr(task, "loss", loss)
    with pytest.raises(KeyboardInterrupt):
        sweep([dataclasses.replace(spec, encoding="rope")], task, folder, accelerator)
    assert folder.results() == []


def test_no_checkpoint_of_a_finished_run_stays(
    tmp_path: Path, task: LanguageModelling, spec: LengthSpec, accelerator: Accelerator
) -> None:
    """A kill between the result and the removal of its checkpoint."""
    folder = RunFolder(tmp_path, LengthSpec)
    specs = [dataclasses.replace(spec, encoding=name) for name in ("rope", "alibi")]
    sweep(specs[:1], task, folder, accelerator)
    for one in specs:
        folder.file("checkpoints", one).write_bytes(b"left over")
    folder.prepare(specs[0])
    assert not folder.file("checkpoints", specs[0]).exists()
    assert folder.file("checkpoints", specs[1]).exists()  # that run is not finished
