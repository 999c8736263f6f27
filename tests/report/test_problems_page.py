"""The page of a comparison on problems: the answer first, every number in it, nothing loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_problems import SIZES, TYPICAL, result, runs, save_problems
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.problems import ProblemSummary
from posembed.report.questions import write_report
from posembed.report.questions.problems import PAGE, best_first, ends_at, solves_in_words


def summary_of(results: list) -> ProblemSummary:
    return QUESTIONS["addition"].summarise(results)


def test_the_page_answers_first_and_holds_every_run(tmp_path: Path) -> None:
    page = write_report(save_problems(tmp_path, runs(2)).path).read_text(encoding="utf-8")
    order = ["<h1>Which position encoding solves addition past 10 digits?", *PAGE.answer(summary_of(runs(2)))]
    order += ["<svg", ">Exact match in percent", "Single tokens of the answers", "What was trained"]
    order += ["training loss", "Settings", "Every value, by seed"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "<script" not in page
    for name in TYPICAL:
        assert f"{name}, seed 1" in page


def test_a_reference_is_not_for_this_page(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"--reference is for .* holds runs of addition"):
        write_report(save_problems(tmp_path, runs(1)).path, reference="rope")


def test_who_solves_what() -> None:
    summary = summary_of(runs(2))
    rows = {row.name: row for row in best_first(summary)}
    assert list(rows) == ["coupled", "learned", "rope", "alibi", "none", "sinusoidal"]
    solved = {name: solves_in_words(row, summary) for name, row in rows.items()}
    assert solved == {"coupled": "30+", "learned": "10", "rope": "5", "alibi": "5", "none": "under 5", "sinusoidal": ""}
    assert {name: ends_at(row, summary) for name, row in rows.items() if ends_at(row, summary)} == {"learned": 10}
    beyond, others, certainty = PAGE.answer(summary)
    assert "coupled solves up to 30" in beyond
    assert not any(name in beyond for name in rows if name != "coupled")
    assert "Rope and alibi solve up to 5" in others
    assert "sinusoidal failed (seed 0: the loss was nan)" in others
    assert "2 runs per encoding" in certainty


def test_runs_that_differ_are_listed_by_seed() -> None:
    results = [result("rope", (1.0, share, 0.0), seed=seed) for seed, share in enumerate((0.99, 0.4))]
    assert "rope 10 and 5" in PAGE.answer(summary_of(results))[-1]
    assert "no intervals" in PAGE.answer(summary_of(results[:1]))[-1]


def test_nobody_solves_more_and_nothing_finished() -> None:
    assert "no encoding solves any larger size" in PAGE.answer(summary_of([result("rope", (1.0, 1.0, 0.1))]))[0]
    (failed, certainty) = PAGE.answer(summary_of([result("rope", None, failure="the loss was nan")]))
    assert "rope failed" in failed
    assert "one run per encoding" in certainty


def test_the_tables_hold_the_summary() -> None:
    summary = summary_of(runs(2))
    first, (tokens, trained) = PAGE.main_table(summary), PAGE.tables(summary)
    texts = {row.name: [cell.text for cell in row.cells] for row in first.rows}
    assert texts["coupled"] == ["30+", "100", "100", "98.5"]
    assert texts["learned"] == ["10", "100", "96", "no position"]
    assert texts["sinusoidal"] == ["failed", "", "", ""]
    for table in (first, tokens, trained):
        assert all(len(row.cells) == len(table.head) for row in table.rows)
    assert trained.rows[0].cells[-1].text == "30, 30"


def test_the_figure_draws_every_shape_of_outcome() -> None:
    (figure,) = PAGE.figures(summary_of(runs(2)))
    assert ">✕ learned: no position past 10<" in figure.svg
    for name in ("rope", "alibi", "none", "coupled", *map(str, SIZES)):
        assert f">{name}<" in figure.svg
    assert ">sinusoidal<" not in figure.svg
    assert list(PAGE.figures(summary_of([result("rope", None, failure="the loss was nan")])))
