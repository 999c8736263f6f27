"""A run folder takes several processes at once, and a kill at any moment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fresh_process import run_python
from posembed import files
from posembed.files import remove_leftovers, write_text, written_whole
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec

PROCESSES, RESULTS = 4, 100


def test_no_result_is_lost_though_processes_are_killed(tmp_path: Path) -> None:
    script = Path(__file__).with_name("many_processes.py")
    command = [sys.executable, str(script), str(tmp_path), str(PROCESSES), str(RESULTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (killed,) = re.findall(r"killed (\d+)", done.stderr)
    assert int(killed) >= 20
    results = RunFolder(tmp_path, LengthSpec).results()
    assert sorted(result.spec.seed for result in results) == list(range(PROCESSES * RESULTS))
    added = done.stdout.split()
    assert len(added) == len(set(added))  # a result that was added is not made again
    assert {result.spec.key() for result in results} >= set(added)


@pytest.mark.whole
def test_an_array_job_ends_as_one_process_though_a_task_is_killed(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("\n".join(f"line {number} of {number**3} words" for number in range(300)))
    done = run_python(Path(__file__).with_name("array_job.py"), tmp_path, text, together=True)
    assert done.returncode == 0, done.stdout
    shared, alone = (tmp_path / name for name in ("shared", "alone"))
    ours, theirs = ({r.spec: r for r in RunFolder(folder, LengthSpec).results()} for folder in (shared, alone))
    assert len(ours) == 3
    assert ours.keys() == theirs.keys()
    for spec, result in ours.items():
        assert (result.losses, result.measurements) == (theirs[spec].losses, theirs[spec].measurements)
    for part in ("tables", "attention", "checkpoints"):
        files = ({file.name: file.read_bytes() for file in (folder / part).iterdir()} for folder in (shared, alone))
        assert next(files) == next(files), part
    assert (shared / "settings.json").read_bytes() == (alone / "settings.json").read_bytes()


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_is_whole_or_as_it_was(tmp_path: Path, replace: bool) -> None:
    file = tmp_path / "file"

    def interrupted() -> None:
        with written_whole(file, replace=replace) as temporary:
            temporary.write_text("half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    write_text(file, "first", replace=replace)
    write_text(file, "second", replace=replace)
    assert file.read_text() == ("second" if replace else "first")
    assert list(tmp_path.iterdir()) == [file]
    (tmp_path / "usual").touch()
    assert file.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with written_whole(file) as first, written_whole(file) as second:
        first.write_text("first")
        second.write_text("second")
    assert file.read_text() == "first"  # renamed last


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_system_without_hard_links_and_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(files, "system_rename", lambda *_, **__: False)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "file", "first", replace=replace)
    write_text(tmp_path / "file", "second", replace=replace)
    assert (tmp_path / "file").read_text() == ("second" if replace else "first")


def test_leftovers_of_killed_processes_go_and_nothing_else(tmp_path: Path) -> None:
    names = [f".a.json.{'0' * 8}.partial", f".a.json.{'1' * 8}.partial", ".mine.partial", "notes.partial", "a.json"]
    for name in names:
        (tmp_path / name).touch()
        if not name.endswith("1.partial"):
            os.utime(tmp_path / name, (time.time() - 9999,) * 2)
    for folder in ("mine", f".model.{'2' * 8}.partial"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / names[0]).touch()
        for path in (tmp_path / folder / names[0], tmp_path / folder):
            os.utime(path, (time.time() - 9999,) * 2)
    remove_leftovers(tmp_path, "b.json")
    assert (tmp_path / names[0]).exists()
    remove_leftovers(tmp_path)
    assert (tmp_path / "mine" / names[0]).exists()
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / f".model.{'2' * 8}.partial")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
