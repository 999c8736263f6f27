from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import torch
from posembed.report.inits.quoted import QUOTED, disagreements, quoted_table
from posembed.report.inits.report import write_report
from posembed.report.inits.tables import result_tables
from posembed.report.inits.words import answer, best_first, told
from typer.testing import CliRunner

from made_up_inits import init_run, init_runs_of, save_inits, typical
from posembed.cli import app
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.model.looking import save_attention
from posembed.lab.questions.inits import summarise_inits
from posembed.statistics import Estimate

FAILURE = "the loss was nan at step 90 of 600; try a lower learning rate"


def text_of(path: Path) -> str:
    page = re.sub(r"<style>.*?</style>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def test_what_can_be_told() -> None:
    assert told(None) == told(Estimate(0.1, None, None, (0.1,))) == "unknown"
    assert told(Estimate(0.1, -0.1, 0.3, (0.0, 0.2))) == "untold"
    assert told(Estimate(0.1, 0.05, 0.15, (0.1, 0.1))) == "higher"
    assert told(Estimate(0.9, 0.8, 0.95, (0.9, 0.9)), same=1.0) == "lower"


def test_the_answer_names_the_best_and_says_what_can_be_told_from_the_reference() -> None:
    losses, steps, rows = answer(summarise_inits(typical(3)))
    assert losses.startswith("The lowest held-out loss after 600 steps is sinusoidal-0.02's, 1.")
    assert "(3 runs of each). Against normal-0.02, paired by seed, sinusoidal-0.02 by 0.03" in losses
    assert "ends lower; normal-0.05 by 0.0" in losses
    assert losses.endswith("end higher; normal-0.01 and zero cannot be told apart from it.")
    assert re.search(r"To a training loss of 1\.\d+, sinusoidal-0.02 takes 0\.\d+ times as many steps", steps)
    assert "sinusoidal takes 1." in steps
    assert "effective rank of the trained tables is 12.0 to 12.0" in rows


def test_one_run_of_each_tells_nothing_apart_and_failures_are_said() -> None:
    results = [*init_runs_of({"normal-0.02": 1.4, "zero": 1.5}), init_run("normal-0.5", 0, failure=FAILURE)]
    losses = answer(summarise_inits(results))[0]
    assert "the highest zero's" in losses
    assert "a single run of each, so no interval is known" in losses
    assert losses.endswith("Training failed from normal-0.5.")
    assert answer(summarise_inits([init_run("zero", 0, failure=FAILURE)])) == ["Training failed from zero."]
    assert answer(summarise_inits([init_run("zero", 1.4)])) == [
        "The lowest held-out loss after 600 steps is zero's, 1.398 nats."
    ]


def test_where_ours_disagrees_with_the_table_that_guides_hand_on() -> None:
    (said,) = disagreements(summarise_inits(typical(3)))
    assert said.startswith("The table that guides hand on says otherwise: ")
    assert re.search(r"sinusoidal ends \+0\.08\d from normal-0.02 here, .0\.01 there", said)
    assert "xavier ends" not in said  # both say higher
    assert re.search(r"sinusoidal takes 1\.\d+ times the steps here, 0.95 times the epochs there", said)
    assert "Whether the losses from normal-0.01 and zero differ as it says cannot be told from these runs." in said
    alike = {init: quoted.loss for init, quoted in QUOTED.items()}
    (said,) = disagreements(summarise_inits(init_runs_of(alike, seeds=3)))
    assert "ends" not in said
    assert disagreements(summarise_inits(typical(3), reference="zero")) == []
    assert disagreements(summarise_inits(init_runs_of({"normal-0.02": 1.4}))) == []


def test_the_tables_hold_the_summary() -> None:
    summary = summarise_inits(typical(3))
    tables = [*result_tables(summary), quoted_table(summary)]
    for table in tables:
        assert table.first == "start"
        assert all(len(row.cells) == len(table.head) for row in table.rows)
    losses, steps, _, quoted = tables
    assert [row.name for row in losses.rows] == [row.init for row in best_first(summary)]
    verdicts = {row.name: row.cells[3].text for row in losses.rows}
    assert verdicts["sinusoidal-0.02"] == "better"
    assert verdicts["xavier"] == "worse"
    assert verdicts["zero"] == "cannot be told apart"
    assert verdicts["normal-0.02"] == "the reference"
    assert {row.cells[2].text for row in steps.rows} == {"3 of 3"}
    on_the_loss = {row.name: (row.cells[0].text, row.cells[-1].text) for row in quoted.rows}
    assert on_the_loss["sinusoidal"] == ("1.44", "disagrees")
    assert on_the_loss["xavier"] == ("1.46", "agrees")
    assert on_the_loss["zero"] == ("1.48", "cannot be told")
    assert "sinusoidal-0.02" not in on_the_loss


def test_the_page_answers_first_and_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    results = [*typical(2), init_run("normal-0.5", 0, failure=FAILURE)]
    path = write_report(save_inits(tmp_path / "runs", results).path)
    text = text_of(path)
    order = [
        "Which values should a learned table start from?",
        *answer(summarise_inits(results)),
        "held-out loss less normal-0.02's, nats a token",
        "steps to a training loss of",
        "Held-out loss",
        "What became of the rows",
        "Beside the table that guides hand on",
        "How alike the rows are",
        "The tables in numbers, along the training",
        "training loss, nats a token",
        "Settings",
        "Every value, by seed",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    for result in results:
        assert result.spec.name in text
        assert f"{result.measurements.loss:.5f}" in text if result.measurements else FAILURE in text
    assert write_report(path.parent, tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_the_command_finds_the_question_s_page(tmp_path: Path) -> None:
    folder = save_inits(tmp_path, typical(1)).path
    asked = CliRunner().invoke(app, ["report", str(folder), "--reference", "zero"], catch_exceptions=False)
    assert asked.exit_code == 0
    assert "less zero's, nats a token" in text_of(folder / "report.html")
    with pytest.raises(ArgumentError, match="the reference 'alibi' was not run"):
        CliRunner().invoke(app, ["report", str(folder), "--reference", "alibi"], catch_exceptions=False)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_report(tmp_path / "nowhere")


def test_where_the_heads_look_is_shown_by_start(tmp_path: Path) -> None:
    folder = save_inits(tmp_path, typical(1))
    result = folder.results()[0]
    weights = torch.full((1, 2, 8), 0.125, dtype=torch.float64)
    folder.attention(result.spec).parent.mkdir(exist_ok=True)
    save_attention(folder.attention(result.spec), weights)
    text = text_of(write_report(folder.path))
    assert text.count("Where the heads look") == 1
    assert f"{result.spec.init}, seed 0" in text.partition("Where the heads look")[2]


def test_a_page_of_runs_that_all_failed_or_have_no_tables(tmp_path: Path) -> None:
    folder = save_inits(tmp_path / "failed", [init_run("zero", 0, failure=FAILURE)])
    assert "Training failed from zero." in text_of(write_report(folder.path))
    folder = save_inits(tmp_path / "bare", init_runs_of({"zero": 1.4}))
    for file in (folder.path / "tables").iterdir():
        file.unlink()
    assert "What the tables became" not in text_of(write_report(folder.path))
