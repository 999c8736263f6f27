"""The page of an algorithmic comparison: the answer first, every number in it, nothing loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from posembed.lab.questions.algorithms import summarise_algorithm
from posembed.report.algorithms.curve import algorithm_figure
from posembed.report.algorithms.tables import result_tables
from posembed.report.algorithms.words import answer
from typer.testing import CliRunner

from made_up_problems import TYPICAL, result, runs
from posembed.cli import app
from posembed.errors import ArgumentError
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.problems import Algorithm


def saved(path: Path, seeds: int = 2) -> RunFolder:
    folder = RunFolder(path, Algorithm)
    made = runs(seeds)
    folder.prepare(made[0].spec)
    for run in made:
        folder.add(run)
    return folder


def test_the_command_writes_the_page_of_its_question(tmp_path: Path) -> None:
    saved(tmp_path)
    asked = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    assert asked.stdout == f"report: {tmp_path / 'report.html'}\n"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    paragraphs = answer(summarise_algorithm(runs(2)))
    order = ["Which position encoding solves addition past 10 digits?", *paragraphs, "<svg", ">Exact match<"]
    order += [
        "Single tokens of the answers",
        "What was trained",
        "training loss",
        "Settings",
        "Every value, by seed",
    ]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "<script" not in page
    for name in TYPICAL:
        assert f"{name}, seed 1" in page


def test_a_reference_is_not_for_this_page(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ArgumentError, match=r"--reference is for .* holds runs of algorithms"):
        CliRunner().invoke(app, ["report", str(tmp_path), "--reference", "rope"], catch_exceptions=False)


def test_the_tables_hold_the_summary() -> None:
    first, tokens, trained = result_tables(summarise_algorithm(runs(2)))
    assert [row.name for row in first.rows] == ["coupled", "learned", "rope", "alibi", "none", "sinusoidal"]
    texts = {row.name: [cell.text for cell in row.cells] for row in first.rows}
    assert texts["coupled"] == ["30+", "100", "100", "99"]
    assert texts["learned"] == ["10", "100", "96", "no position"]
    assert texts["sinusoidal"] == ["failed", "", "", ""]
    for table in (first, tokens, trained):
        assert all(len(row.cells) == len(table.head) for row in table.rows)
    assert trained.rows[0].cells[-1].text == "30, 30"


def test_the_figure_draws_every_shape_of_outcome() -> None:
    (axes,) = algorithm_figure(summarise_algorithm(runs(2))).axes
    texts = [text.get_text() for text in axes.texts]
    assert "✕ learned: no position past 10" in texts
    assert {"rope", "alibi", "none", "coupled"} <= set(texts)
    assert "sinusoidal" not in texts
    algorithm_figure(summarise_algorithm([result("rope", None, failure="the loss was nan")]))
