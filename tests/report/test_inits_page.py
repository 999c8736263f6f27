"""The page about initial values: what the answer claims, the tables, the figures. The wording is in golden/."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import torch

from made_up_inits import init_run, init_runs_of, save_inits, typical
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.inits import InitReading, InitSummary
from posembed.lab.runs.tensors import save_attention
from posembed.report.questions import write_report
from posembed.report.questions.inits import PAGE, PUBLISHED, best_first, disagreements, published_table
from posembed.report.words import OUTCOMES as WORDS
from posembed.report.words import outcome
from posembed.statistics import Estimate

FAILURE = "the loss was nan at step 90 of 600; try a lower learning rate"
OUTCOMES = {
    "sinusoidal-0.02": "better",
    "normal-0.02": "the reference",
    "normal-0.01": "not significant",
    "zero": "not significant",
    "normal-0.05": "worse",
    "xavier": "worse",
    "sinusoidal": "worse",
}


def summary_of(results: list, reference: str | None = None) -> InitSummary:
    return QUESTIONS["inits"].summarise(results, InitReading(reference=reference))


def text_of(path: Path) -> str:
    page = re.sub(r"<style>.*?</style>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def test_outcomes_follow_the_interval() -> None:
    assert outcome(None) == outcome(Estimate(0.1, None, None, (0.1,))) == "unknown"
    assert outcome(Estimate(0.1, -0.1, 0.3, (0.0, 0.2))) == "not significant"
    assert outcome(Estimate(0.1, 0.05, 0.15, (0.1, 0.1))) == "worse"
    assert outcome(Estimate(0.9, 0.8, 0.95, (0.9, 0.9)), same=1.0) == "better"


def test_the_answer_groups_the_tables_by_outcome() -> None:
    losses, steps, gradients, rows, _, certainty = PAGE.answer(summary_of(typical(3)))
    sentences = losses.partition(" nats. ")[2].split("normal-0.02.")
    for kind, (*_, words) in WORDS.items():
        lead = words.removesuffix("{}")
        text = "".join(sentence for sentence in sentences if f" {lead}" in sentence)
        named = {name for name in OUTCOMES if f"{name} " in text}
        assert named == {name for name, found in OUTCOMES.items() if found == kind}
    assert losses.startswith(
        "In a causal model after 600 steps, sinusoidal-0.02 has the lowest held-out loss, 1.262 nats"
    )
    assert re.search(r"0\.91 times .* with sinusoidal-0.02 and 1\.79 times .* with sinusoidal", steps)
    assert re.search(r"smallest with zero, 2\.30 .* and largest with sinusoidal-0\.02, 3\.40", gradients)
    assert rows.endswith("12.0.")
    assert certainty.startswith("There are 3 runs per table.")


def test_one_run_per_table_has_no_interval_and_failures_are_named() -> None:
    results = [*init_runs_of({"normal-0.02": 1.4, "zero": 1.5}), init_run("normal-0.5", 0, failure=FAILURE)]
    losses, *_, certainty = PAGE.answer(summary_of(results))
    assert "zero (+0.100) cannot be called better or worse than normal-0.02, because an interval is missing." in losses
    assert "one run per table, so there are no intervals" in certainty
    assert f"1 of 1 with normal-0.5 (seed 0: {FAILURE})" in losses
    assert "95%" not in " ".join(PAGE.answer(summary_of(results)))
    assert PAGE.answer(summary_of([init_run("zero", 0, failure=FAILURE)])) == [
        f"Failed runs are left out: 1 of 1 with zero (seed 0: {FAILURE})."
    ]
    (only, _) = PAGE.answer(summary_of([init_run("zero", 1.4)]))
    assert "zero has the lowest held-out loss, 1.398 nats." in only


def test_failures_in_some_runs_and_intervals_that_are_unknown() -> None:
    """Two seeds of most tables; one lost a run, one lost both, one has a single run."""
    failure = "the loss was nan at step 3 of 600"
    runs = init_runs_of({"normal-0.02": 1.4, "zero": 1.5, "xavier": 1.6}, seeds=2)
    runs = [run for run in runs if (run.spec.init, run.spec.seed) != ("xavier", 1)]
    runs += [init_run("normal-0.5", 1.7), init_run("normal-0.5", 0, seed=1, failure=failure)]
    runs += [init_run("sinusoidal", 0, seed=seed, failure=failure) for seed in range(2)]
    text = " ".join(PAGE.answer(summary_of(runs)))
    assert "1 of 2 with normal-0.5" in text
    assert "2 of 2 with sinusoidal" in text
    assert re.search(r"xavier .* and normal-0.5 .* cannot be called better or worse than normal-0.02, ", text)
    only = [run for run in runs if run.spec.init != "zero"]
    text = " ".join(PAGE.answer(summary_of(only)))
    assert "an interval is missing" in text
    assert "1 to 2 runs per table" in text


def test_where_the_published_table_disagrees() -> None:
    text = disagreements(summary_of(typical(3)))
    assert re.search(r"the loss of sinusoidal minus that of normal-0.02 is \+0\.080 in these runs and .0\.01 in", text)
    assert "loss of xavier" not in text  # both are higher
    assert "sinusoidal takes 1.79 times the steps in these runs and 0.95 times the epochs in that table" in text
    assert "cannot confirm the differences in that table for normal-0.01 and zero" in text
    alike = {init: published.loss for init, published in PUBLISHED.items()}
    text = disagreements(summary_of(init_runs_of(alike, seeds=3)))
    assert "the loss of" not in text
    assert disagreements(summary_of(typical(3), reference="zero")) == ""
    assert disagreements(summary_of(init_runs_of({"normal-0.02": 1.4}))) == ""


def test_the_tables_hold_the_summary() -> None:
    summary = summary_of(typical(3))
    losses, (steps, gradients, became, published) = PAGE.main_table(summary), PAGE.tables(summary)
    for table in (losses, steps, gradients, became, published):
        assert table.first == "initial values"
        assert all(len(row.cells) == len(table.head) for row in table.rows)
    assert published == published_table(summary)
    assert [row.name for row in losses.rows] == [row.name for row in best_first(summary)]
    assert {row.name: row.cells[3].text for row in losses.rows} == OUTCOMES
    assert {row.cells[2].text for row in steps.rows} == {"3 of 3"}
    on_the_loss = {row.name: (row.cells[0].text, row.cells[-1].text) for row in published.rows}
    assert on_the_loss["sinusoidal"] == ("1.44", "disagrees")
    assert on_the_loss["xavier"] == ("1.46", "agrees")
    assert on_the_loss["zero"] == ("1.48", "not significant")
    assert "sinusoidal-0.02" not in on_the_loss


def test_the_page_answers_first_and_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    results = [*typical(2), init_run("normal-0.5", 0, failure=FAILURE)]
    path = write_report(save_inits(tmp_path / "runs", results).path)
    text = text_of(path)
    order = [
        "Which initial values should a learned table start from?",
        *PAGE.answer(summary_of(results)),
        "held-out loss minus that of normal-0.02, nats per token",
        "steps to a training loss of",
        "Held-out loss",
        "How the rows changed",
        "Compared with a table that many guides repeat",
        "How similar the rows are",
        "The tables in numbers, during training",
        "training loss, nats per token",
        "Settings",
        "Every value, by seed",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    for result in results:
        assert result.spec.name in text
        assert f"{result.measurements.loss:.5f}" in text if result.measurements else FAILURE in text
    assert write_report(path.parent, tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_another_reference(tmp_path: Path) -> None:
    folder = save_inits(tmp_path, typical(1)).path
    assert "minus that of zero, nats per token" in text_of(write_report(folder, reference="zero"))
    with pytest.raises(ArgumentError, match="the reference 'alibi' was not run"):
        write_report(folder, reference="alibi")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_report(tmp_path / "nowhere")


def test_a_reading_without_a_loss_counts_steps_as_usual() -> None:
    results = typical(2)
    assert QUESTIONS["inits"].summarise(results).losses == summary_of(results).losses
    assert QUESTIONS["inits"].summarise(results, InitReading(loss=1.5)).loss == 1.5


def test_where_the_heads_look_is_shown_by_table(tmp_path: Path) -> None:
    folder = save_inits(tmp_path, typical(1))
    result = folder.results()[0]
    weights = torch.full((1, 2, 8), 0.125, dtype=torch.float64)
    folder.file("attention", result.spec).parent.mkdir(exist_ok=True)
    save_attention(folder.file("attention", result.spec), weights)
    text = text_of(write_report(folder.path))
    assert text.count("Where the heads look") == 1
    assert f"{result.spec.init}, seed 0" in text.partition("Where the heads look")[2]


def test_a_page_of_runs_that_all_failed_or_have_no_tables(tmp_path: Path) -> None:
    folder = save_inits(tmp_path / "failed", [init_run("zero", 0, failure=FAILURE)])
    assert "left out: 1 of 1 with zero" in text_of(write_report(folder.path))
    folder = save_inits(tmp_path / "bare", init_runs_of({"zero": 1.4}))
    for file in (folder.path / "tables").iterdir():
        file.unlink()
    assert "What the tables learned" not in text_of(write_report(folder.path))
