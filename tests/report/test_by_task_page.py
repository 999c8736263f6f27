"""The page about tables of different tasks: what the answer claims. The wording is in golden/."""

from __future__ import annotations

from pathlib import Path

from made_up_by_task import by_task_run, by_task_runs, save_by_task
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder
from posembed.report.questions import page_of


def answer(folder: RunFolder) -> str:
    question = QUESTIONS["by-task"]
    return " ".join(page_of(question).answer(question.summarise(folder.results(), folder=folder)))


def test_the_answer_claims_what_the_intervals_allow(tmp_path: Path) -> None:
    text = answer(save_by_task(tmp_path, by_task_runs(4)))
    different, _, same = text.partition("are significantly more different than those of two seeds of one task.")
    assert "The tables of causal and masked (CKA" in different
    assert "masked and replaced (CKA" in different
    assert "causal and replaced (CKA" in same
    assert "are not significantly more different" in same


def test_without_enough_seeds_the_answer_says_what_is_missing(tmp_path: Path) -> None:
    one = answer(save_by_task(tmp_path / "one", by_task_runs(1)))
    assert "use --seeds 3" in one
    assert "significantly" not in one
    two = answer(save_by_task(tmp_path / "two", by_task_runs(2)))
    assert "it needs three seeds" in two
    assert "significantly" not in two
    alone = answer(save_by_task(tmp_path / "alone", [by_task_run("masked", seed) for seed in range(3)]))
    assert "for masked" in alone
    assert "two tasks" not in alone


def test_the_answer_names_what_it_leaves_out_and_what_it_combines(tmp_path: Path) -> None:
    results = by_task_runs(3)
    folder = save_by_task(tmp_path, results)
    assert "not in the run folder" not in answer(folder)
    assert "come from leaving out one seed at a time" in answer(folder)
    assert "paired by seed" not in answer(folder)
    for result in results[:2]:
        folder.file("tables", result.spec).unlink()
    assert "Tables that are not in the run folder are left out: causal, seed 0; masked, seed 0." in answer(folder)


def test_a_start_that_all_seeds_share_is_named(tmp_path: Path) -> None:
    for init in ("normal-0.02", "xavier", "zero", "sinusoidal", "sinusoidal-0.02"):
        runs = [by_task_run("masked", seed, init=init) for seed in range(2)]
        text = answer(save_by_task(tmp_path / init, runs))
        alike = f"All tables start from the same values ({init}), so they are alike before they learn." in text
        assert alike == init.startswith("sinusoidal")


def test_a_larger_distance_is_more_different(tmp_path: Path) -> None:
    folder = save_by_task(tmp_path, by_task_runs(4))
    special = QUESTIONS["by-task"].summarise(folder.results(), folder=folder).special
    assert {row.different for row in special.rows if row.tasks == ("causal", "masked")} == {"yes"}
