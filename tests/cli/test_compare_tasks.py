"""posembed compare tasks, on problems: what comes on stdout, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posembed.lab.tasks.problem_texts import PROBLEMS
from published_files import SENTENCES, write_glue, write_squad

SMALL = "--train-size 3 --test-sizes 2,5 --layers 1 --width 8 --heads 2 --steps 2 --batch 2 --test-problems 4"


def test_state_tracking_counts_wrong_reads(posembed, tmp_path: Path) -> None:
    command = f"compare tasks tracking {SMALL} --encodings learned,rope --json --out"
    summary = json.loads(posembed(command, tmp_path).out)
    metrics = {one["metric"] for one in summary["estimates"]}
    assert metrics == {f"share of wrong reads{tail}" for tail in ("", ", sparse tail", ", dense tail")}
    page = posembed("report", tmp_path)
    assert page.code == 0
    assert "follow a ball under five cups" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (result, _) = sorted((tmp_path / "results").iterdir())
    kept = json.loads(result.read_text(encoding="utf-8"))["measurements"]
    assert {metric for metric, *_ in kept["values"]} == metrics
    told = posembed(f"compare tasks flip-flop {SMALL} --encodings learned,rope --out", tmp_path / "other").out
    assert "Share of wrong reads in percent (lower is better), by instructions" in told


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_has_a_command_that_says_what_it_would_take(problem: str, posembed, tmp_path: Path) -> None:
    done = posembed(f"compare tasks {problem} {SMALL} --encodings alibi --dry-run --out", tmp_path / "runs")
    assert done.code == 0
    assert done.out.startswith(f"{problem}: ")
    assert "nothing was trained" in done.out
    assert not (tmp_path / "runs").exists()


# posembed compare tasks text and images as a user runs them.


TEXT = "--train-length 12 --layers 1 --width 8 --heads 2 --steps 3 --batch 4 --warmup 1 --tokenizer bytes"
IMAGES = "--layers 1 --width 8 --heads 2 --steps 3 --batch 4 --warmup 1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "mails.csv"
    file.write_text("mail,kind\n" + "".join(f"letter {i},{'ham' if i % 3 else 'spam'}\n" for i in range(40)))
    return file


def write_named(name: str, folder: Path) -> None:
    if name == "squad":
        write_squad(folder)
    else:
        write_glue(folder, name)


@pytest.mark.parametrize("name", [*SENTENCES, "squad"])
def test_the_data_sets_that_guides_name_can_be_planned_without_a_network(posembed, name: str, tmp_path: Path) -> None:
    write_named(name, tmp_path)
    question = "spans" if name == "squad" else "text"
    small = "--preset documents-quarter --tokenizer bytes --width 24 --layers 1 --steps 2 --batch 4"
    command = f"compare tasks {question} --data {name}:{tmp_path} {small} --encodings learned,sinusoidal"
    code, out, err = posembed(f"{command} --out {tmp_path}/runs --dry-run")
    assert code == 0, err
    assert "nothing was trained" in out
    if name in ("mnli", "squad"):
        code, out, err = posembed(f"{command} --out {tmp_path}/runs --json")
        assert code == 0, err
        settings = json.loads((tmp_path / "runs" / "settings.json").read_text())
        assert settings.get("pairs") == ("segments" if name == "mnli" else None)
        assert [row["name"] for row in json.loads(out)["rows"]] == ["learned", "sinusoidal"]


def test_joined_columns_keep_their_settings(posembed, data: Path, tmp_path: Path) -> None:
    """Old folders of pairs continue; pairs in segments are other runs."""
    command = f"compare tasks text --data {data} --text-column mail,kind --label-column size {TEXT} --encodings none"
    data.write_text("mail,kind,size\n" + "".join(f"m {i},k {i % 4},{i % 2}\n" for i in range(20)))
    for pairs in ("", " --pairs joined"):
        assert posembed(f"{command}{pairs} --out {tmp_path}/run").code == 0
    assert "pairs" not in json.loads((tmp_path / "run" / "settings.json").read_text())
    assert len(list((tmp_path / "run" / "results").iterdir())) == 1
    done = posembed(f"{command} --pairs segments --out {tmp_path}/run")
    assert (done.code, "pairs: None there, segments now" in done.err) == (1, True)
    assert posembed(f"{command} --pairs segments --out {tmp_path}/other").code == 0
