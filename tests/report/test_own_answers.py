"""What the answers of single questions say of their own: how far lengths hold, published tables, tables of tasks."""

from __future__ import annotations

import math
from pathlib import Path

from asked import summarise
from made_up_by_task import by_task_run, by_task_runs, save_by_task
from made_up_inits import init_runs_of, typical
from made_up_runs import NO_REACH, TYPICAL, run, runs
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.tables import STEPS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.text_specs import LOSS
from posembed.report.questions import page_of
from posembed.report.questions.inits import PUBLISHED, agrees
from posembed.report.questions.lengths import last_position, reach, reach_in_words, verdict

FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"
FLAT = (4.0, 4.0, 4.0, 4.0)


def said(results: list[RunResult], **reading: str) -> str:
    found = summarise(results, **reading)
    return " ".join(page_of(found.question).answer(found))


def verdict_of(*results: RunResult) -> tuple[str, str]:
    found = summarise(results)
    cell = verdict(found, found.rows[0])
    return cell.kind, cell.text


def test_verdicts_follow_the_worst_ratio_past_the_training_length() -> None:
    expected = {
        (4.0, 3.9, 3.8, 3.7): ("holds", "holds"),
        (4.0, 4.0, 4.07, 4.079): ("holds", "holds"),
        (4.0, 4.0, 4.0, 4.09): ("worse", "2% worse"),
        (4.0, 4.4, 4.0, 3.9): ("worse", "10% worse at 128"),
        (4.0, 5.0, 6.0, 9.2): ("worse", "2.30 times worse"),
        (4.0, 5.0, 600.0, 4800.0): ("worse", "1,200 times worse"),
        (4.0, None, None, None): ("ends", "ends at 64"),
        (4.0, 4.0, None, None): ("ends", "ends at 128"),
    }
    assert {values: verdict_of(run("rope", values)) for values in expected} == expected
    failed = [run("rope", failure=FAILURE), run("rope", failure="out of words", seed=1)]
    assert verdict_of(*failed) == ("failed", "failed at step 90")
    assert verdict_of(failed[1]) == ("failed", "failed")
    assert verdict_of(*failed, run("rope", seed=2))[1] == "5.92 times worse"  # one run is enough for a verdict
    for lengths in ((128, 256), (32, 64)):
        assert verdict_of(run("rope", (4.0, 4.1), test_lengths=lengths))[0] == "untested"
    # A table ends where training ended, even if no test length shows it.
    found = summarise([run("learned", (None, None), test_lengths=(128, 256))])
    assert last_position(found, found.rows[0]) == 64


def test_what_is_not_a_number_never_holds_nor_reaches() -> None:
    for at in (1, 2, 3):
        for broken in (math.inf, math.nan):
            kind, text = verdict_of(run("rope", (*FLAT[:at], broken, *FLAT[at + 1 :])))
            assert (kind, text.split()[0]) == ("worse", "∞")
            assert probed(broken if math.isnan(broken) else -broken, 0.4, 0.4, 0.4) == (None, "under 32")


def probed(*gains: float | None) -> tuple[int | None, str]:
    found = summarise([run("rope", gains=gains)])
    return reach(found, found.rows[0]), reach_in_words(found, found.rows[0])


def test_reach_is_the_farthest_gap_without_a_miss_before_it() -> None:
    assert probed(0.4, 0.3, 0.06, 0.049) == (128, "128")
    assert probed(0.4, 0.3, 0.2, 0.1) == (256, "256+")
    assert probed(0.4, 0.01, 0.2, 0.1) == (32, "32")
    assert probed(*NO_REACH) == (None, "under 32")
    assert probed(-0.4, 0.3, 0.3, 0.3) == (None, "under 32")


def test_what_holds_ends_and_reaches_is_named() -> None:
    assert "holds with none of the encodings" in said(runs(1, ("learned", "sinusoidal", "rope")))
    assert "holds with rope and “none”" in said([run("rope", FLAT), run("none", FLAT)])
    peak = "With rope, the perplexity is highest at 128 tokens: 1.50 times that at 64."
    assert peak in said([run("rope", (4.0, 6.0, 5.0, 4.5))])
    assert "learned (64 tokens) cannot be measured" in said(runs(1, ("learned",)))
    failed = said([run(name, failure=FAILURE) for name in TYPICAL])
    assert failed.count(FAILURE) == len(TYPICAL)
    assert not any(claim in failed for claim in ("holds", "perplexity", "probe"))
    assert "holds" not in said([run("rope", (4.2, 4.0), test_lengths=(32, 64))])
    far, near = run("rope", FLAT, gains=(0.4, 0.3, 0.1, 0.0)), run("alibi", FLAT, gains=(0.4, 0.0, 0.0, 0.0))
    text = said([far, near, run("rolling")])
    assert all(each in text for each in ("128 tokens for rope", "32 tokens for alibi", "under 32 tokens for rolling"))
    worse = run("sinusoidal", gains=(0.4, 0.4, 0.4, 0.4))
    assert "256+ tokens for sinusoidal" not in said([near, worse])
    assert "256+ tokens for sinusoidal" in said([worse])


# What is special about the page of initial values: a published table beside the measurements.


def test_what_disagrees_with_the_published_table_is_named() -> None:
    found = summarise(typical(3))
    page = page_of(found.question)
    answer = " ".join(page.answer(found))
    assert "repeat: the loss of sinusoidal and the steps of sinusoidal." in answer
    assert "cannot confirm the differences in the loss in that table for normal-0.01 and zero." in answer
    on_the_loss = {name: agrees(found, LOSS, name) for name in PUBLISHED[LOSS]}
    assert on_the_loss == {
        "normal-0.02": "the reference",
        "normal-0.01": "not significant",
        "normal-0.05": "agrees",
        "xavier": "agrees",
        "sinusoidal": "disagrees",
        "zero": "not significant",
    }
    (table,) = page.extra_tables(found)
    assert {row.name for row in table.rows} == {*PUBLISHED[LOSS]}
    assert agrees(summarise(typical(1)), STEPS, "xavier") == "unknown"


def test_nothing_is_compared_with_the_published_table_without_its_reference() -> None:
    for found in (summarise(typical(2), reference="xavier"), summarise(init_runs_of({"zero": 1.4, "normal-0.5": 1.5}))):
        page = page_of(found.question)
        assert "that table" not in " ".join(page.answer(found))
        assert not any(table.rows for table in page.extra_tables(found))


# The page about tables of different tasks: what the answer claims. The wording is in golden/.


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
