from __future__ import annotations

from pathlib import Path

import pytest

from made_up_inits import init_run, init_runs_of
from made_up_problems import runs as problem_runs
from made_up_runs import run, runs, save
from posembed.cli.compare import print_comparison
from posembed.comparison import Comparison
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunResult


def test_report_says_where_the_page_is(posembed, tmp_path: Path) -> None:
    folder = save(tmp_path, runs(1, ("rope", "alibi"))).path
    assert posembed("report", folder) == (0, f"report: {folder / 'report.html'}\n", "")
    page = (folder / "report.html").read_bytes()
    assert posembed("report", folder, "--out", tmp_path / "page.html").out == f"report: {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == page


def test_a_problem_has_its_page(posembed, tmp_path: Path) -> None:
    problems = save(tmp_path / "addition", problem_runs(1)).path
    assert posembed("report", problems).code == 0
    assert QUESTIONS["addition"].asks in (problems / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_reported_is_one_line(posembed, tmp_path: Path) -> None:
    mistakes = {"is not a run folder": posembed("report", tmp_path)}
    folder = save(tmp_path / "lengths", runs(1, ("rope", "alibi"))).path
    mistakes["the reference 'xpos' was not run; the finished runs are rope, alibi"] = posembed(
        "report", folder, "--reference", "xpos"
    )
    problems = save(tmp_path / "addition", problem_runs(1)).path
    mistakes["--reference is for questions that compare"] = posembed("report", problems, "--reference", "rope")
    empty = posembed("report", folder, "--out", "")
    assert (empty.code, "expected a path" in empty.err) == (1, True)
    for message, done in mistakes.items():
        assert (done.code, done.out) == (1, "")
        assert message in done.err
        assert done.err.count("\n") == 1


# What a comparison prints: the main tables, the answer, the notes. The wording is in tests/report/golden.


FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path):
    def of(results: list[RunResult], columns: int = 100, reference: str | None = None) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        question = QUESTIONS[results[0].spec.question]
        summary = question.summarise(results, question.ReadingType(reference=reference))
        print_comparison(Comparison(question, tmp_path, results, summary))
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return of


def test_table_and_answer_in_this_order(printed) -> None:
    lines = printed(runs(3), reference="alibi", columns=120)
    assert lines[1].startswith("Perplexity of the same tokens")
    names = [line.split()[0] for line in lines[6:16:2]]
    assert names == ["rolling", "alibi", "rope", "sinusoidal", "learned"]
    assert lines[6].split()[:2] == ["rolling", "holds"]
    text = "\n".join(lines)
    order = ["At 64 tokens", "cannot be measured past its last", "Unless stated otherwise, intervals"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_one_run_has_no_interval_and_that_is_said_once(printed) -> None:
    text = " ".join(printed(runs(1)))
    assert "95%" not in text
    assert text.count("one run per encoding") == 1


def test_what_failed_is_the_last_row_and_the_answer_gives_the_reason(printed) -> None:
    lines = printed([run("none", failure=FAILURE), *runs(1)])
    (row,) = [line for line in lines if line.startswith("none ")]
    assert row.split()[:5] == ["none", "failed", "at", "step", "90"]
    assert lines.index(row) > max(index for index, line in enumerate(lines) if line.startswith("learned  "))
    assert f"(seed 0: {FAILURE})" in " ".join(lines)
    failed = init_run("normal-0.5", 0, failure="the loss was nan at step 3 of 600")
    text = " ".join(printed([*init_runs_of({"zero": 1.4}), failed]))
    assert "1 of 1 with normal-0.5 (seed 0: the loss was nan" in text


def test_a_name_is_printed_as_it_is(printed) -> None:
    assert any("[red]x[/red]" in line for line in printed([run("[red]x[/red]", (4.0,) * 4)]))
