"""posembed compare tasks text and images as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    assert "accuracy minus that of none" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_images_from_digits_to_page(posembed, tmp_path: Path) -> None:
    code, out, err = posembed(
        f"compare tasks images {IMAGES} --encodings learned-1d,factorized --test-sizes 12 --out {tmp_path}/run",
    )
    assert code == 0, err
    assert "held-out images is " in out.replace("\n", " ")
    code, _, err = posembed(f"report {tmp_path}/run")
    assert code == 0, err


def test_a_dry_run_trains_nothing(posembed, tmp_path: Path) -> None:
    code, out, _ = posembed(f"compare tasks images {IMAGES} --out {tmp_path}/run --dry-run")
    assert code == 0
    assert "1,348 to train on, the last 449 held out" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("text --data {data}", "which column of mails.csv holds the text? Name it with --text-column"),
        ("text --data {data} --text-column mail", "which column of mails.csv holds the label?"),
        ("text --data {data} --text-column mail --label-column mail", "cannot be both the label and in the text"),
        ("text --data {data} --text-column letter", "mails.csv has no column named 'letter'; it has mail, kind"),
        ("text --data {columns} --encodings rolling", "'rolling' needs a causal window"),
        ("text --data {columns} --encodings learned,factorized", "'factorized' places the patches of an image"),
        ("text --data {columns} --pooling max", "pooling must be one of cls, mean; got 'max'"),
        ("text --data {columns} --reference rope --encodings learned", "the reference 'rope' is not compared"),
        ("images --encodings rope", "'rope' encodes positions in a sequence, but the patches of an image form a grid"),
        ("images --test-sizes 9", "images of 9 x 9 pixels cannot be cut into patches of 2 x 2"),
        ("images --data cats", "unknown images 'cats'"),
        ("images --width 9", "width 9 is not divisible by 4 heads"),
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
