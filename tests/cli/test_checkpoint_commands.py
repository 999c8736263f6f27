"""posembed inspect and posembed resize: each parses, calls the library and prints what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from posembed.cli.inspect import inspect
from posembed.cli.resize import resize, sides
from posembed.errors import ArgumentError, CheckpointError
from tiny_models import IMAGE, TEXT, saved, tiny_model

app = typer.Typer()
app.command()(inspect)
app.command()(resize)


def output(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return saved(tiny_model("bert", TEXT), tmp_path / "bert")


def test_inspect(bert: Path) -> None:
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


def test_resize(bert: Path, tmp_path: Path) -> None:
    text = output("resize", bert, tmp_path / "out", "--length", 64, "--method", "hierarchical")
    key = "embeddings.position_embeddings.weight"
    assert f"{key}: 40 x 32 -> 64 x 32, hierarchical; its first 40 rows are unchanged" in text
    assert "config.json: max_position_embeddings: 40 -> 64" in text
    assert f"written: {tmp_path / 'out'}" in text
    assert "usable length       64 positions" in output("inspect", tmp_path / "out")


def test_resize_dry(bert: Path, tmp_path: Path) -> None:
    assert "nothing was written" in output("resize", bert, tmp_path / "out", "--length", 64, "--dry-run")
    record = json.loads(output("resize", bert, tmp_path / "out", "--length", 64, "--dry-run", "--json"))
    assert (record["from"], record["to"], record["written"]) == (40, 64, False)
    assert not (tmp_path / "out").exists()


def test_image_sizes_and_grids(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "vit")
    assert "1 x 17 x 32 -> 1 x 37 x 32" in output("resize", source, tmp_path / "a", "--image-size", "48")
    assert "1 x 17 x 32 -> 1 x 13 x 32" in output("resize", source, tmp_path / "b", "--grid", "2x6")
    assert "image_size: 32 -> [16, 48]" in output("resize", source, tmp_path / "c", "--image-size", "16x48")


def test_sides() -> None:
    assert sides("384", "--image-size") == (384, 384)
    assert sides("24x32", "--grid") == (24, 32)
    for text in ("", "x", "24x", "-3", "24x24x24", "1e3", "9" * 30):
        with pytest.raises(ArgumentError, match="--grid"):
            sides(text, "--grid")


def test_errors_are_posembeds_own(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        output("inspect", tmp_path / "nothing")
    with pytest.raises(ArgumentError):
        output("resize", bert, tmp_path / "out", "--length", 0)
