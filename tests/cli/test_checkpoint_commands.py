"""posembed inspect and posembed resize: each parses, calls the library and prints what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny_models import IMAGE, TEXT, saved, tiny_model


@pytest.fixture
def output(posembed):
    def run(command: str, *arguments: object) -> str:
        done = posembed(command, *arguments, columns=200)
        assert done.code == 0, done.err
        return done.out

    return run


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return saved(tiny_model("bert", TEXT), tmp_path / "bert")


def test_inspect(output, bert: Path) -> None:
    text = output("inspect", bert)
    for words in (
        "embeddings.position_embeddings.weight",
        "usable length       40 positions",
        "40 rows of 32, F32",
        "max_position_embeddings = 40",
        "! scale",
    ):
        assert words in text
    assert json.loads(output("inspect", bert, "--json"))["tables"][0]["rows"] == 40


def test_resize(output, bert: Path, tmp_path: Path) -> None:
    text = output("resize", bert, tmp_path / "out", "--length", 64, "--method", "hierarchical")
    key = "embeddings.position_embeddings.weight"
    assert f"{key}: 40 x 32 -> 64 x 32, hierarchical; leading rows unchanged: 40" in text
    assert "config.json: max_position_embeddings: 40 -> 64" in text
    assert f"written: {tmp_path / 'out'}" in text
    assert "usable length       64 positions" in output("inspect", tmp_path / "out")


def test_check_ends_with_1_if_something_is_wrong(posembed, output, bert: Path, tmp_path: Path) -> None:
    output("resize", bert, tmp_path / "out", "--length", 64)
    text = output("check", tmp_path / "out", "--against", bert)
    assert f"to load it: BertModel.from_pretrained('{tmp_path / 'out'}')" in text
    (tmp_path / "out" / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    done = posembed("check", tmp_path / "out", "--json")
    assert done.code == 1
    assert "lets 128 tokens through, and the table takes 64" in json.loads(done.out)["problems"][0]


def test_resize_dry(output, bert: Path, tmp_path: Path) -> None:
    assert "nothing was written" in output("resize", bert, tmp_path / "out", "--length", 64, "--dry-run")
    record = json.loads(output("resize", bert, tmp_path / "out", "--length", 64, "--dry-run", "--json"))
    assert (record["from"], record["to"], record["written"]) == (40, 64, False)
    assert not (tmp_path / "out").exists()


def test_image_sizes_and_grids(output, tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "vit")
    assert "1 x 17 x 32 -> 1 x 37 x 32" in output("resize", source, tmp_path / "a", "--image-size", "48")
    assert "1 x 17 x 32 -> 1 x 13 x 32" in output("resize", source, tmp_path / "b", "--grid", "2x6")
    assert "image_size: 32 -> [16, 48]" in output("resize", source, tmp_path / "c", "--image-size", "16x48")


def test_a_length_of_none_writes_nothing(posembed, bert: Path, tmp_path: Path) -> None:
    done = posembed("resize", bert, tmp_path / "out", "--length", 0)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert not (tmp_path / "out").exists()
