"""posembed compare tasks text and images as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from published_files import SENTENCES, write_glue, write_squad
from together import together

TEXT = "--train-length 12 --layers 1 --width 8 --heads 2 --steps 3 --batch 4 --warmup 1 --tokenizer bytes"
IMAGES = "--layers 1 --width 8 --heads 2 --steps 3 --batch 4 --warmup 1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "mails.csv"
    file.write_text("mail,kind\n" + "".join(f"letter {i},{'ham' if i % 3 else 'spam'}\n" for i in range(40)))
    return file


def test_texts_from_table_to_page(posembed, data: Path, tmp_path: Path) -> None:
    columns = f"--data {data} --text-column mail --label-column kind"
    command = f"compare tasks text {columns} {TEXT} --encodings learned,sinusoidal,none --seeds 2 --out {tmp_path}/run"
    code, out, err = posembed(command)
    assert code == 0, err
    assert "minus sinusoidal" in out
    assert "none, seed 1: training loss" in err
    assert len(list((tmp_path / "run" / "results").iterdir())) == 6
    code, out, err = posembed(command + " --json")
    assert [row["name"] for row in json.loads(out)["rows"]] == ["learned", "sinusoidal", "none"]
    assert "training loss" not in err  # nothing trained again
    code, out, err = posembed(f"report {tmp_path}/run --reference none")
    assert code == 0, err
    assert "minus none" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_images_from_digits_to_page(posembed, tmp_path: Path) -> None:
    code, out, err = posembed(
        f"compare tasks images {IMAGES} --encodings learned-1d,factorized --test-sizes 12 --out {tmp_path}/run",
    )
    assert code == 0, err
    assert "the accuracy is " in out.replace("\n", " ")


def test_a_dry_run_trains_nothing(posembed, tmp_path: Path) -> None:
    code, out, _ = posembed(f"compare tasks images {IMAGES} --out {tmp_path}/run --dry-run")
    assert code == 0
    assert "1,348 to train on, the last 449 held out" in out
    assert not (tmp_path / "run").exists()


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


def test_files_to_test_on_from_table_to_page(posembed, tmp_path: Path) -> None:
    for part, first in (("train", 0), ("test", 50)):
        rows = [f"{first + i} O\nAna B-PER\n" for i in range(8)]
        (tmp_path / f"{part}.conll").write_text("\n".join(rows))
    small = "--train-length 12 --layers 1 --width 8 --heads 2 --steps 2 --batch 4 --tokenizer bytes"
    files = f"--data {tmp_path}/train.conll --test-data {tmp_path}/test.conll"
    code, out, err = posembed(f"compare tasks tags {files} {small} --encodings learned,none --out {tmp_path}/run")
    assert code == 0, err
    assert "the entity F1 is " in out.replace("\n", " ").replace("The", "the")


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
