"""What the page of ``compare lengths`` says of a search for the factors of rope-longrope."""

from __future__ import annotations

import dataclasses
import math

from made_up_runs import run, runs
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.lengths import Searched
from posembed.lab.runs.results import RunResult
from posembed.report.questions.lengths import PAGE, in_groups

STARTS = {"linear": math.log(22), "ntk": math.log(18), "yarn": math.log(8)}


def searched(seed: int) -> RunResult:
    result = run("rope-longrope", (3.7, 3.9, 4.4, 5.1), seed=seed)
    assert result.measurements is not None
    found = Searched((1.0, 1.234, 2.0, 3.5, 8.0), 4 * seed, math.log(5 + seed), STARTS, 200)
    return dataclasses.replace(result, measurements=dataclasses.replace(result.measurements, searched=found))


def test_the_factors_of_each_seed_are_in_the_report() -> None:
    summary = QUESTIONS["lengths"].summarise([*runs(2), *(searched(seed) for seed in range(2))])
    (table,) = (t for t in PAGE.tables(summary) if t.title == "Factors found by a search")
    assert [cell.text for cell in table.head] == ["found", "by yarn", "by ntk", "by linear", "first tokens", "factors"]
    assert [row.name for row in table.rows] == ["rope-longrope, seed 0", "rope-longrope, seed 1"]
    assert [cell.text for cell in table.rows[1].cells][:5] == ["6.00", "8.00", "18.00", "22.00", "4"]
    assert table.rows[1].cells[5].text.replace("\N{NO-BREAK SPACE}", " ") == "1, 1.23, 2, 3.5, 8"
    assert any(
        note.startswith("rope-longrope: the factors come from a search with 200 losses") for note in PAGE.notes(summary)
    )


def test_a_loss_beyond_every_perplexity_is_infinite() -> None:
    """Such as that of a model that diverged: e to the power of 710 is no float."""
    result = searched(0)
    assert result.measurements is not None
    assert result.measurements.searched is not None
    starts = {"linear": 710.0, "ntk": math.inf, "yarn": 1537.9}
    diverged = dataclasses.replace(result.measurements.searched, loss=1e9, starts=starts)
    result = dataclasses.replace(result, measurements=dataclasses.replace(result.measurements, searched=diverged))
    (table,) = (t for t in PAGE.tables(QUESTIONS["lengths"].summarise([*runs(1), result])) if "search" in t.title)
    assert [cell.text for cell in table.rows[0].cells][:4] == ["∞"] * 4


def test_nothing_is_said_without_a_search() -> None:
    summary = QUESTIONS["lengths"].summarise(runs(2))
    assert not any(t.rows for t in PAGE.tables(summary) if t.title == "Factors found by a search")
    assert not any("search" in note for note in PAGE.notes(summary))


def test_lines_break_after_groups() -> None:
    assert in_groups(["1", "2", "3"], 2) == "1,\N{NO-BREAK SPACE}2, 3"
    assert in_groups([]) == ""
