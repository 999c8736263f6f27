"""What a comparison prints: the main tables, the answer, the notes. The wording is in tests/report/golden."""

from __future__ import annotations

import pytest

from made_up_inits import init_run, init_runs_of
from made_up_runs import run, runs
from posembed.cli.compare import print_comparison
from posembed.comparison import Comparison
from posembed.lab.question import Compared
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunResult

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


def test_a_reading_names_the_reference() -> None:
    summary = QUESTIONS["lengths"].summarise(runs(1), Compared(reference="rope"))
    assert summary.reference == "rope"
