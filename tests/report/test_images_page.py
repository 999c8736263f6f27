"""The page about classified images, from made-up results: the training grid, and the grid farthest from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from made_up_classes import image_run, image_runs, save_classes
from posembed.errors import ArgumentError
from posembed.lab.question import Compared
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.classification import ImageSummary
from posembed.report.questions import write_report
from posembed.report.questions.images import PAGE, are_twins, best_first

FAILURE = "the loss was nan at step 30"


def summary_of(results: list, reference: str | None = None) -> ImageSummary:
    return QUESTIONS["images"].summarise(results, Compared(reference=reference))


def test_the_answer_has_a_paragraph_per_grid() -> None:
    trained, farther, _ = PAGE.answer(summary_of(image_runs(5)))
    assert "are the same model until the grid changes" in trained
    assert re.search("“none” [(]\N{MINUS SIGN}[^.]*.* significantly worse than learned-1d[.]", trained)
    assert "on 400 held-out images is 95" in trained
    assert "12 x 12 pixels" in farther
    assert re.search(r"factorized \([+].* are significantly better than learned-1d[.]", farther)
    assert "learned-2d (+" in farther
    assert "same model" not in farther


def test_twins_are_the_same_model_on_the_training_grid_only() -> None:
    summary = summary_of(image_runs(3))
    twins = [(row.name, size) for row in summary.rows for size in summary.test_sizes if are_twins(row, summary, size)]
    assert twins == [("learned-2d", 8)]
    assert "same model" not in " ".join(PAGE.answer(summary_of(image_runs(3), reference="none")))


def test_best_first_by_the_training_grid() -> None:
    summary = summary_of([image_run("sinusoidal-2d", failure=FAILURE), *image_runs(3)])
    order = [row.name for row in best_first(summary)]
    assert (order[0], order[-2:]) == ("factorized", ["none", "sinusoidal-2d"])
    cells = {row.name: row.cells[0].text for row in PAGE.main_table(summary).rows}
    assert (cells["factorized"], cells["sinusoidal-2d"]) == ("95.2", "failed")


def test_everything_failed() -> None:
    assert PAGE.answer(summary_of([image_run("none", failure=FAILURE)])) == [
        f"Failed runs are left out: 1 of 1 with “none” (seed 0: {FAILURE})."
    ]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_is_the_same_for_the_same_runs(seeds: int, tmp_path: Path) -> None:
    save_classes(tmp_path, [*image_runs(seeds), image_run("sinusoidal-2d", failure=FAILURE)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.index("accuracy on held-out images, percent") < page.index("The numbers")
    assert page.count("<svg") >= 4  # accuracies, two learned tables, training
    assert "training failed: sinusoidal-2d." in page
    assert page == write_report(tmp_path, tmp_path / "again.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    save_classes(tmp_path / "run", image_runs(1, ("none",)))
    with pytest.raises(ArgumentError, match="cannot be written"):
        write_report(tmp_path / "run", tmp_path)
