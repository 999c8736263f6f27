"""The page of a comparison on problems: the answer first, every number in it, nothing loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import escape

from made_up_problems import SIZES, TYPICAL, result, runs, save_problems
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.problems import ProblemSummary
from posembed.report.questions import write_report
from posembed.report.questions.problems import PAGE, best_first, ends_at
from posembed.report.words import up_to


def summary_of(results: list) -> ProblemSummary:
    return QUESTIONS["addition"].summarise(results)


def test_the_page_answers_first_and_holds_every_run(tmp_path: Path) -> None:
    page = write_report(save_problems(tmp_path, runs(2)).path).read_text(encoding="utf-8")
    order = [
        f"<h1>{QUESTIONS['addition'].asks}</h1>",
        *map(escape, PAGE.answer(summary_of(runs(2)))),
    ]
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
    solved = {name: up_to(row.solves, summary.test_sizes) for name, row in rows.items() if row.seeds}
    assert solved == {"coupled": "30+", "learned": "10", "rope": "5", "alibi": "5", "none": "under 5"}
    assert {name: ends_at(row, summary) for name, row in rows.items() if ends_at(row, summary)} == {"learned": 10}
    found, rule, certainty = PAGE.answer(summary)
    beyond, others = found.split(". ", 1)
    assert "larger problems are solved with coupled" in beyond
    assert not any(name in beyond for name in rows if name != "coupled")
    for part in ("30+ with coupled (exact match 98.5%, 92", "5 with rope", "5 with alibi", "under 5 with “none”"):
        assert part in others
    assert "learned has no positions past 10." in others
    assert "2 of 2 with sinusoidal (seed 0: the loss was nan)" in others
    assert "95%" in rule
    assert "2 runs per encoding" in certainty


def test_runs_that_differ_are_listed_by_seed() -> None:
    results = [result("rope", (1.0, share, 0.0), seed=seed) for seed, share in enumerate((0.99, 0.4))]
    assert "by seed: rope 10 and 5" in PAGE.answer(summary_of(results))[-2]
    assert "no intervals" in PAGE.answer(summary_of(results[:1]))[-1]


def test_nobody_solves_more_and_nothing_finished() -> None:
    answer = PAGE.answer(summary_of([result("rope", (1.0, 1.0, 0.1))]))
    assert "larger problems are solved with none of the encodings" in answer[0]
    failed = " ".join(PAGE.answer(summary_of([result("rope", None, failure="the loss was nan")])))
    assert "1 of 1 with rope (seed 0: the loss was nan)" in failed
    assert "one run per encoding" not in failed


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
