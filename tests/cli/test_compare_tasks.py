"""posembed compare tasks, on problems: what comes on stdout, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posembed.lab.tasks.problem_texts import PROBLEMS
from published_files import SENTENCES, write_glue, write_squad
from together import together

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


@together(
    ("words", "message"),
    [
        ("sorting --encodings abacus", "abacus ids do not apply to sorting"),
        ("copy --encodings coupled", "they apply to reverse and addition"),
        ("parity --encodings ropes", "unknown encoding 'ropes' for parity"),
        ("parity --encodings alibi --track tensorboard --on ray", "leave out --on, or leave out --track"),
    ],
)
def test_a_mistake_is_refused_before_anything_trains(words: str, message: str, posembed, tmp_path: Path) -> None:
    problem, options = words.split(" ", 1)
    done = posembed(f"compare tasks {problem} {SMALL} {options} --out", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


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


@together(
    ("command", "message"),
    [
        ("text --data {data}", "which column of mails.csv holds the text? Name it with --text-column"),
        ("text --data {columns} --pooling max", "pooling must be one of cls, mean; got 'max'"),
        ("text --data {columns} --pairs segments", "--pairs segments needs two text columns"),
        ("tags --data {data}", "column; expected 2: a word, ..., its label"),
        ("spans --preset huge", "unknown preset 'huge'; choose from default, documents, documents-quarter"),
        ("images --test-sizes 9", "images of 9 x 9 pixels cannot be cut into patches of 2 x 2"),
        ("images --data cats", "unknown images 'cats'"),
    ],
)
def test_mistakes_are_refused_before_anything_trains(
    posembed, data: Path, tmp_path: Path, command: str, message: str
) -> None:
    columns = f"{data} --text-column mail --label-column kind --tokenizer bytes"
    asked = command.format(data=data, columns=columns)
    code, out, err = posembed(f"compare tasks {asked} --out {tmp_path}/run")
    assert code == 1
    assert out == ""
    assert message in err
    assert not (tmp_path / "run").exists()
