from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from posembed import RunFolderError
from posembed.lab.measure import Measurements
from posembed.lab.runs.results import RunFolder, RunResult, result_from_json
from posembed.lab.tasks.language import LanguageModelling, LanguageSpec


def result(spec: LanguageSpec, loss: float = 1.5) -> RunResult:
    by_length = dict.fromkeys(spec.test_lengths, loss)
    measured = Measurements(by_length, {**by_length, 40: None}, by_length, by_length, {8: 0.1, 16: None}, 1.25)
    return RunResult(spec, 100, 10, None, ((1, 2.5), (12, loss)), measured, None, 3.5, 120.0, {"torch": "2"})


def test_there_and_back(spec: LanguageSpec) -> None:
    done = result(dataclasses.replace(spec, encoding="rope"), loss=0.1 + 0.2)
    assert result_from_json(done.to_json(), LanguageModelling) == done
    failed = dataclasses.replace(done, measurements=None, failure="the loss was nan at step 3")
    assert result_from_json(failed.to_json(), LanguageModelling) == failed


def test_keys_tell_specs_apart(spec: LanguageSpec) -> None:
    others = [
        dataclasses.replace(spec, **{name: value})
        for name, value in [("seed", 1), ("encoding", "rope+window"), ("steps", 13), ("learning_rate", 1e-9)]
    ]
    assert len({s.key() for s in [spec, *others]}) == 5
    assert "/" not in others[1].key()
    assert "+" not in others[1].key()


def test_results_come_back_in_order(tmp_path: Path, spec: LanguageSpec) -> None:
    folder = RunFolder(tmp_path / "new" / "run", LanguageModelling)
    folder.prepare(spec)
    assert folder.results() == []
    done = [result(dataclasses.replace(spec, encoding=name)) for name in ("rope", "alibi")]
    for one in done:
        folder.add(one)
    assert folder.results() == done
    assert len(folder.results_file.read_text().splitlines()) == 2


def test_a_broken_line_is_named_and_the_rest_kept(tmp_path: Path, spec: LanguageSpec) -> None:
    folder = RunFolder(tmp_path, LanguageModelling)
    folder.prepare(spec)
    for name in ("rope", "alibi", "none"):
        folder.add(result(dataclasses.replace(spec, encoding=name)))
    lines = folder.results_file.read_text().splitlines(keepends=True)
    for broken in (lines[1][:40] + "\n", "{}\n", "[1]\n", '"text"\n', lines[1].replace("steps", "stops")):
        text = lines[0] + broken + lines[2]
        folder.results_file.write_text(text)
        with pytest.raises(RunFolderError, match=r"line 2 of .*results\.jsonl is not a run.*the other 2 stay"):
            folder.results()
        assert folder.results_file.read_text() == text
    folder.results_file.write_text(lines[0] + lines[2])
    assert [r.spec.encoding for r in folder.results()] == ["rope", "none"]


def test_other_settings_are_refused_and_named(tmp_path: Path, spec: LanguageSpec) -> None:
    folder = RunFolder(tmp_path, LanguageModelling)
    folder.prepare(spec)
    folder.prepare(dataclasses.replace(spec, encoding="alibi", seed=7))  # these may differ
    other = dataclasses.replace(spec, steps=99, test_lengths=(8, 16))
    with pytest.raises(
        RunFolderError, match=r"steps: 12 there, 99 now; test_lengths: \[8, 16, 40\] there, \[8, 16\] now"
    ):
        folder.prepare(other)
    assert json.loads(folder.settings_file.read_text())["steps"] == 12


def test_folders_that_cannot_be_used(tmp_path: Path, spec: LanguageSpec) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot be written.*another --out"):
        RunFolder(tmp_path / "file" / "run", LanguageModelling).prepare(spec)
    with pytest.raises(RunFolderError, match=r"is not a run folder.*posembed compare lengths"):
        RunFolder(tmp_path, LanguageModelling).settings()
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(RunFolderError, match="is broken"):
        RunFolder(tmp_path, LanguageModelling).prepare(spec)
