"""What holds for the page and the table of every question, whatever became of its runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import made_up_runs
from made_up import MADE
from posembed.comparison import Comparison
from posembed.errors import ArgumentError
from posembed.lab.questions import PROBLEMS, QUESTIONS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.report.questions import page_of, write_report
from posembed.report.terminal import as_text, fitting_columns
from together import asked, together

FAILURE = "the loss was nan at step 9 of 700; try a lower learning rate"


def failed(result: RunResult) -> RunResult:
    return dataclasses.replace(result, measurements=None, failure=FAILURE)


STATES: dict[str, Callable[[str], list[RunResult]]] = {
    "one seed": lambda name: MADE[name](1),
    "three seeds": lambda name: MADE[name](3),
    "one alone": lambda name: MADE[name](1)[:1],
    "some failed": lambda name: [
        failed(result) if number % 4 == 1 else result for number, result in enumerate(MADE[name](2))
    ],
    "the first of every seed failed": lambda name: [
        failed(result) if result.spec.compared == MADE[name](1)[0].spec.compared else result for result in MADE[name](2)
    ],
    "all failed": lambda name: [failed(result) for result in MADE[name](2)],
    "seeds that are not shared": lambda name: [
        result for number, result in enumerate(MADE[name](2)) if number % 2 == result.spec.seed
    ],
}


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


def folder_of(path: Path, results: list[RunResult]) -> RunFolder[Any]:
    folder = RunFolder(path, QUESTIONS[results[0].spec.question].Spec)
    folder.prepare(results[0].spec)
    for result in results:
        folder.add(result)
    return folder


def test_every_kind_of_page_is_tested() -> None:
    assert {*QUESTIONS} - {*PROBLEMS} == {*MADE} - {*PROBLEMS} | {"cost"}


def is_usual(name: str, state: str) -> bool:
    """Pages share what they say of runs that failed or stand alone: each state with a part of the questions."""
    return (list(MADE).index(name) + list(STATES).index(state)) % len(STATES) == 0


@together("name, state", list(product(MADE, STATES)), usual=is_usual)
def test_a_page_is_whole_whatever_became_of_the_runs(name: str, state: str, tmp_path: Path) -> None:
    results = STATES[state](name)
    page = write_report(folder_of(tmp_path, results).path).read_text(encoding="utf-8")
    tags = Tags(page).found
    assert tags.count("h1") == 1
    assert "script" not in tags
    assert tags.count("svg") >= 1
    for result in results:
        assert f">{result.spec.name}<" in page
    question = QUESTIONS[name]
    summary = question.summarise(results)
    table, answer = page_of(question).main_tables(summary)[0], page_of(question).answer(summary)
    assert all(len(row.cells) == len(table.head) for row in table.rows)
    assert all(text and text[-1] == "." and "None" not in text and "nan," not in text for text in answer)
    assert (FAILURE in page) == ("failed" in state)
    if state in ("one seed", "one alone"):
        assert "intervals are 95% intervals over seeds" not in page
        assert "There is one run per" in page


@together("name", MADE)
def test_a_folder_in_which_nothing_has_finished(name: str, tmp_path: Path) -> None:
    question = QUESTIONS[name]
    folder = RunFolder(tmp_path, question.Spec)
    folder.prepare(MADE[name](1)[0].spec)
    with pytest.raises(ArgumentError, match="no run is finished yet"):
        write_report(tmp_path)


@together("seeds", [1, 3])
@together("name", MADE)
def test_columns_that_do_not_fit_are_named_and_nothing_is_cut(name: str, seeds: int) -> None:
    question = QUESTIONS[name]
    table = page_of(question).main_tables(question.summarise(MADE[name](seeds)))[0]
    assert all(cell.rank > 0 for cell in table.head), "a column without a rank never leaves"
    for width in range(40, 201, 5 if asked["whole"] else 16):
        lines = as_text([table], [], width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert not any("…" in line for line in lines)
        shown = fitting_columns(table, width)
        hidden = [head for index, head in enumerate(table.head) if index not in shown]
        named = " ".join(" ".join(lines).split()).partition("No space to show these columns: ")[2]
        assert named == ", ".join(" ".join(head.text.split()) for head in hidden) + ("." if hidden else "")
        # Those that left matter less than those that stay.
        ranks = [table.head[index].rank for index in shown]
        assert min((head.rank for head in hidden), default=9) >= max(ranks, default=0)
        for row in table.rows:
            (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{row.name} ")]
            for index in shown:
                assert row.cells[index].text in lines[at]
                assert row.cells[index].note in lines[min(at + 1, len(lines) - 1)]
    assert hidden == []


def test_a_name_wider_than_the_terminal_is_folded_not_cut() -> None:
    name = "日本-" + "x" * 50
    question = QUESTIONS["lengths"]
    summary = question.summarise([made_up_runs.run(name, (4.0,) * 4)])
    text = as_text(page_of(question).main_tables(summary)[:1], [], 40)
    assert max(map(cell_len, text.splitlines())) <= 40
    table = text.partition("──\n")[2].partition("No space")[0]  # the name is folded beside the other columns
    assert "日本-" in table
    assert table.count("x") == 50


@together("name", MADE, usual=lambda name: list(MADE).index(name) % 3 == 0)
def test_a_comparison_shows_its_table_in_python_and_in_a_notebook(name: str, tmp_path: Path) -> None:
    question, results = QUESTIONS[name], MADE[name](2)
    folder = folder_of(tmp_path, results)
    comparison = Comparison(question, folder.path, results, question.summarise(results))
    text, fragment = repr(comparison), comparison._repr_html_()
    table, *_ = comparison.tables()
    assert table.title in text
    assert f"<h3>{table.title}</h3>" in fragment
    for row in table.rows:
        assert row.name in text
        assert f"{row.name}</span></th>" in fragment
        assert f">{row.cells[0].text}<" in fragment
    assert comparison.answer()[0].split()[0] in text
    assert fragment.count("<p>") == len(comparison.answer())
    assert len(comparison.to_dict()["rows"]) <= len(table.rows)  # those of by-task are also of two tasks
