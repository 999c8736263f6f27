from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from posembed.errors import RunFolderError
from posembed.files import write_text
from posembed.lab.metrics import Measured, by_x
from posembed.lab.question import Compared
from posembed.lab.runs.results import RunFolder, RunResult, result_from_json
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS, WHOLE_WINDOWS, LengthSpec
from posembed.measure import jobs
from posembed.measure.jobs import Store


def result(spec: LengthSpec, loss: float = 1.5) -> RunResult:
    by_length = dict.fromkeys(spec.test_lengths, loss)
    known = {WHOLE_WINDOWS: by_length, SAME_TOKENS: {**by_length, 40: None}, REPEAT_GAIN: {8: 0.1, 16: None}}
    measured = Measured(tuple(by_x(known)))
    return RunResult(spec, 100, 10, None, ((1, 2.5), (12, loss)), measured, None, 3.5, 120.0, {"torch": "2"})


def test_there_and_back(spec: LengthSpec) -> None:
    done = result(dataclasses.replace(spec, encoding="rope"), loss=0.1 + 0.2)
    assert result_from_json(done.to_json(), LengthSpec) == done
    failed = dataclasses.replace(done, measurements=None, failure="the loss was nan at step 3")
    assert result_from_json(failed.to_json(), LengthSpec) == failed


def test_the_path_of_the_data_decides_nothing(spec: LengthSpec) -> None:
    other = dataclasses.replace(spec, data="elsewhere", tokenizer="a/tokenizer.json")
    assert other == spec
    assert hash(other) == hash(spec)
    assert other.key() == spec.key()
    assert dataclasses.replace(spec, data_sha256="1").key() != spec.key()


def test_results_come_back_in_order(tmp_path: Path, spec: LengthSpec) -> None:
    folder = RunFolder(tmp_path / "new" / "run", LengthSpec)
    folder.prepare(spec)
    assert folder.results() == []
    done = [result(dataclasses.replace(spec, encoding=name)) for name in ("rope", "alibi")]
    for one in done:
        folder.add(one)
    assert folder.results() == done
    assert len(list((folder.path / "results").iterdir())) == 2
    folder.add(done[0])  # the same run once more, by another process
    assert folder.results() == done[::-1]


def test_a_broken_file_is_named_and_the_rest_kept(tmp_path: Path, spec: LengthSpec) -> None:
    folder = RunFolder(tmp_path, LengthSpec)
    folder.prepare(spec)
    specs = [dataclasses.replace(spec, encoding=name) for name in ("rope", "alibi", "none")]
    for one in specs:
        folder.add(result(one))
    file = folder.file("results", specs[1])
    text = file.read_text()
    # written by earlier versions
    earlier = (
        text.replace(',"draws":2', ""),
        text.replace('"draws":2', '"draws":1'),
        json.dumps({name: value for name, value in json.loads(text).items() if name != "sha256"}),
    )
    assert text not in earlier
    with pytest.raises(ValueError, match="its measurements are those of another version"):
        result_from_json(earlier[2], LengthSpec)
    for broken in (text[:40], "", "{}", "[1]", '"text"', text.replace("steps", "stops"), *earlier):
        file.write_text(broken)
        with pytest.raises(RunFolderError, match=r"results/alibi-.*\.json is not a run.*the other 2 results stay"):
            folder.check(spec)
        assert file.read_text() == broken
    folder.file("results", specs[2]).write_text(text[:40])
    with pytest.raises(RunFolderError, match=r"like 1 more beside it, is not a run .* the other 1 results stay"):
        folder.results()
    folder.add(result(specs[2]))
    file.unlink()
    assert [r.spec.encoding for r in folder.results()] == ["rope", "none"]


def test_no_measured_value_is_lost_or_changed_in_silence(spec: LengthSpec) -> None:
    text = result(spec).to_json()
    measured = json.loads(text)["measurements"]

    def with_measured(**changed: object) -> str:
        return json.dumps(json.loads(text) | {"measurements": measured | changed})

    assert result_from_json(with_measured(), LengthSpec) == result(spec)
    values = measured["values"]
    broken = [with_measured(values=[]), with_measured(values=values[:-1]), with_measured(sizes={"images": 3})]
    broken += [with_measured(values=[*values[:n], [None, *v[1:]], *values[n + 1 :]]) for n, v in enumerate(values)]
    broken += [with_measured(values=[[v[0], v[1], None, *v[3:]] for v in values]), text.replace("repeat gain", "gain")]
    broken += [json.dumps({**json.loads(text), "measurements": None})]
    for each in broken:
        with pytest.raises(ValueError, match="its measurements were changed"):
            result_from_json(each, LengthSpec)


def test_metrics_of_another_version_are_named(spec: LengthSpec) -> None:
    done = result(spec)
    assert done.measurements is not None
    values = tuple(each._replace(metric=f"old {each.metric}") for each in done.measurements.values)
    other = dataclasses.replace(done, measurements=dataclasses.replace(done.measurements, values=values))
    with pytest.raises(ValueError, match="this version does not measure its old perplexity"):
        result_from_json(other.to_json(), LengthSpec)


def test_other_settings_are_refused_and_named(tmp_path: Path, spec: LengthSpec) -> None:
    folder = RunFolder(tmp_path, LengthSpec)
    folder.prepare(spec)
    folder.prepare(dataclasses.replace(spec, encoding="alibi", seed=7))  # these may differ
    folder.prepare(dataclasses.replace(spec, data="/another/path", tokenizer="bytes/"))  # the hash decides
    other = dataclasses.replace(spec, steps=99, test_lengths=(8, 16))
    with pytest.raises(
        RunFolderError, match=r"steps: 12 there, 99 now; test_lengths: \[8, 16, 40\] there, \[8, 16\] now"
    ):
        folder.prepare(other)
    assert json.loads((folder.path / "settings.json").read_text())["steps"] == 12


def test_settings_that_another_process_writes_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (Store(tmp_path, {"question": "lengths", "width": width}) for width in (64, 128))

    def late(path: Path, text: str, **how: bool) -> None:
        write_text(path, json.dumps(theirs.settings))
        write_text(path, text, **how)

    monkeypatch.setattr(jobs, "write_text", late)
    with pytest.raises(RunFolderError, match="width: 128 there, 64 now"):
        ours.claim()
    assert json.loads((tmp_path / "settings.json").read_text()) == theirs.settings


def test_how_runs_are_summarised_is_kept_before_the_first_run_trains(spec: LengthSpec, tmp_path: Path) -> None:
    RunFolder(tmp_path, LengthSpec, Compared(reference="rope")).prepare(spec)
    assert RunFolder(tmp_path, LengthSpec).reading(Compared) == Compared(reference="rope")
    with pytest.raises(RunFolderError, match="other settings"):  # a command that is refused changes nothing
        RunFolder(tmp_path, LengthSpec, Compared(reference="none")).prepare(dataclasses.replace(spec, steps=99))
    assert RunFolder(tmp_path, LengthSpec).reading(Compared) == Compared(reference="rope")
