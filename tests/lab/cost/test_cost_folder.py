"""The folder of a measurement of cost, and its page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from made_up_cost import result
from made_up_runs import spec
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.cost.results import OF_COST, CostResult, CostSummary, kept, measured_once
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.measure.frame import Frame
from posembed.report.questions import page_of, write_report
from together import together

RESULT = result()


def test_many_encodings_are_named_by_the_first_and_the_last() -> None:
    runs = [dataclasses.replace(RESULT.frame.runs[1], name=str(n)) for n in range(13)]
    settings = dataclasses.replace(RESULT.settings, encodings=tuple(map(str, range(13))))
    many = dataclasses.replace(RESULT, settings=settings, frame=Frame((RESULT.frame.runs[0], *runs)))
    assert "is from .65% with 0 to .65% with 12." in page_of(QUESTIONS["cost"]).answer(CostSummary(many))[0]


def test_what_was_not_tried_is_said() -> None:
    tables = page_of(QUESTIONS["cost"]).main_tables(CostSummary(RESULT))
    (growth,) = (table for table in tables if table.title == "Time by length, by tokens")
    last = {row.name: row.cells[-1].text for row in growth.rows}
    assert (last["alibi"], last["rope"]) == ("not tried", "0.016 ms")
    summary = CostSummary(RESULT)
    assert (summary.end("alibi"), summary.end("rope")) == (4096, None)  # rope was only never asked for more


def test_nothing_but_none_leaves_the_answer() -> None:
    *others, parameters = page_of(QUESTIONS["cost"]).answer(CostSummary(result("none")))
    assert parameters.startswith("A learned table of 512 x 768")
    assert not any("overhead" in each for each in others)


def test_the_page_is_whole_escaped_and_written_beside_its_numbers(tmp_path: Path) -> None:
    measured_once(tmp_path, RESULT.settings, lambda: RESULT)
    assert write_report(tmp_path) == tmp_path / "report.html"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert write_report(tmp_path, tmp_path / "other.html").read_text(encoding="utf-8") == page
    assert "A &lt;Processor&gt; (threads: 1)," in page
    assert page.count("<figure>") == page.count("<svg ") == 3
    with pytest.raises(ArgumentError, match="name another file"):
        write_report(tmp_path, tmp_path)
    with pytest.raises(ArgumentError, match="--reference is for questions that compare with a reference"):
        write_report(tmp_path, reference="rope")


@together("name", [field.name for field in dataclasses.fields(RESULT.settings)])
def test_a_folder_is_of_the_settings_of_its_measurement(name: str, tmp_path: Path) -> None:
    assert not kept(tmp_path, RESULT.settings)
    measured_once(tmp_path, RESULT.settings, lambda: RESULT)
    assert kept(tmp_path, RESULT.settings)
    value = getattr(RESULT.settings, name)
    other = {name: {"encodings": ("t5",), "window": 8, "device": "cuda"}.get(name) or 2 * value}
    for done in (kept, lambda *of: measured_once(*of, lambda: RESULT)):
        with pytest.raises(RunFolderError, match=f"results with other settings \\({name}: .* now\\)"):
            done(tmp_path, dataclasses.replace(RESULT.settings, **other))


def test_a_finished_measurement_is_read_and_an_interrupted_one_made_again(tmp_path: Path) -> None:
    def interrupted() -> CostResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured_once(tmp_path, RESULT.settings, interrupted)
    assert not kept(tmp_path, RESULT.settings)
    assert measured_once(tmp_path, RESULT.settings, lambda: RESULT) == RESULT
    assert measured_once(tmp_path, RESULT.settings, interrupted) == RESULT  # which is not called


def test_a_damaged_measurement_is_refused_and_a_link_to_nothing_is_none(tmp_path: Path) -> None:
    measured_once(tmp_path, RESULT.settings, lambda: RESULT)
    (tmp_path / OF_COST).write_text("")
    for done in (kept, lambda *of: measured_once(*of, lambda: RESULT)):
        with pytest.raises(RunFolderError, match="cannot be read"):
            done(tmp_path, RESULT.settings)
    (tmp_path / OF_COST).unlink()
    with pytest.raises(RunFolderError, match="with the options that began it"):
        write_report(tmp_path)
    (tmp_path / OF_COST).symlink_to("nothing")
    assert not kept(tmp_path, RESULT.settings)


def test_two_processes_do_not_measure_into_one_folder(tmp_path: Path) -> None:
    def twice() -> CostResult:
        return measured_once(tmp_path, RESULT.settings, lambda: RESULT)

    with pytest.raises(RunFolderError, match="another process is running this command"):
        measured_once(tmp_path, RESULT.settings, twice)


def test_runs_and_costs_have_folders_of_their_own(tmp_path: Path) -> None:
    measured_once(tmp_path / "cost", RESULT.settings, lambda: RESULT)
    with pytest.raises(RunFolderError, match="question: cost there, lengths now"):
        RunFolder(tmp_path / "cost", LengthSpec).prepare(spec("rope"))
    RunFolder(tmp_path / "runs", LengthSpec).prepare(spec("rope"))
    with pytest.raises(RunFolderError, match="question: lengths there, cost now"):
        kept(tmp_path / "runs", RESULT.settings)
