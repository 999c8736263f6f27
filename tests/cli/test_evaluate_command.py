"""posembed evaluate and posembed resize --check: one table per measure, JSON and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from evaluated_models import save_causal, write_texts
from posembed.cli import app
from posembed.cli.resize import resize
from posembed.errors import ArgumentError, CheckpointError, DataError
from posembed.tables.resize import WHY_TEXT_METHOD
from tiny_models import TEXT, saved, tiny_model

resizing = typer.Typer()
resizing.command()(resize)


def test_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("gpt"))
    write_texts(Path("text"))
    words = ["evaluate", "gpt", "--text", "text", "--lengths", "32,64,1024", "--texts", "2", "--device", "cpu"]
    failed = CliRunner().invoke(app, words)
    assert "expected at least 1 texts of 1,024 tokens" in str(failed.exception)
    words[5] = "32,64,128"
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:3] == ["Perplexity", "by", "length"]
    assert lines[2][1:4] == ["32", "64", "128"]
    assert lines[4][0] == "gpt"
    assert lines[4][-2:] == ["too", "long"]
    assert lines[6][:6] == ["gpt,", "truncated", "or", "chunked", "at", "64"]
    assert "gpt has 64 positions" in " ".join(done.stdout.split())
    assert Path("runs/evaluations.jsonl").exists()
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert printed["rows"][0]["values"]["perplexity"]["128"] is None


def test_resize_with_a_check(tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    text = write_texts(tmp_path / "text")
    words = [str(tmp_path / "gpt"), str(tmp_path / "out"), "--length", "128", "--check", str(text)]
    done = CliRunner().invoke(resizing, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.index("written: ") < done.stdout.index("Perplexity by length")
    assert done.stdout.count("too long") == 2  # the old checkpoint, in both tables
    printed = CliRunner().invoke(resizing, [*words, "--json", "--overwrite"], catch_exceptions=False).stdout
    before, after, baseline = json.loads(printed)["check"]["rows"]
    assert before["values"]["perplexity"]["64"]["value"] == after["values"]["perplexity"]["64"]["value"]
    assert after["values"]["perplexity"]["128"]["value"] != baseline["values"]["perplexity"]["128"]["value"]


def test_a_check_that_cannot_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "bert")
    words = [str(source), str(tmp_path / "out"), "--length", "128", "--check", str(write_texts(tmp_path / "text"))]
    with pytest.raises(CheckpointError, match="evaluate the checkpoint that has the model's head"):
        CliRunner().invoke(resizing, words, catch_exceptions=False)
    with pytest.raises(ArgumentError, match="--dry-run writes none"):
        CliRunner().invoke(resizing, [*words, "--dry-run"], catch_exceptions=False)
    with pytest.raises(ArgumentError, match="it needs --length"):
        CliRunner().invoke(resizing, [*words[:2], *words[4:]], catch_exceptions=False)
    save_causal(tmp_path / "gpt")
    short = write_texts(tmp_path / "short", words=100)
    with pytest.raises(DataError, match="expected at least 1 texts of 128 tokens"):
        CliRunner().invoke(resizing, [str(tmp_path / "gpt"), *words[1:5], str(short)], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_leftovers_of_a_killed_resize_are_listed(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "bert")
    (tmp_path / ".out.0123abcd.partial").mkdir()
    (tmp_path / ".other.0123abcd.partial").mkdir()
    words = [str(source), str(tmp_path / "out"), "--length", "128"]
    done = CliRunner().invoke(resizing, words, catch_exceptions=False)
    assert ".out.0123abcd.partial: left by a resize to this place" in done.stdout
    assert f"tile is the default: {WHY_TEXT_METHOD}" in done.stdout
    assert ".other" not in done.stdout
    assert (tmp_path / ".out.0123abcd.partial").exists()


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("gpt"))
    words = ["evaluate", "gpt", "--text", str(write_texts(Path("text"))), "--lengths", "32,128", "--texts", "3"]
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--report", "a.html"], catch_exceptions=False)
    assert done.stdout.endswith("report: a.html\n")
    assert "How good is it with 128 tokens" in Path("a.html").read_text(encoding="utf-8")
    Path("thesis.html").write_text("years of work")
    words = ["evaluate", "no", "--text", "no", "--report", "thesis.html"]
    with pytest.raises(ArgumentError, match="not a page of posembed"):  # before anything is measured
        CliRunner().invoke(app, words, catch_exceptions=False)
    seen = CliRunner().invoke(app, ["inspect", "gpt", "--report", "b.html", "--json"], catch_exceptions=False)
    assert json.loads(seen.stdout)["tables"][0]["key"] == "transformer.wpe.weight"
    assert "transformer.wpe.weight" in Path("b.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("lengths", ["a", "1e3", "256 512", "256,512.0"])
def test_lengths_that_are_no_numbers_are_refused(lengths: str) -> None:
    done = CliRunner().invoke(app, ["evaluate", "no", "--text", "no", "--lengths", lengths])
    assert done.exit_code == 2
    assert lengths in done.output


@pytest.mark.parametrize("lengths", ["", "-3", "8,256"])
def test_lengths_below_the_shortest_are_refused(lengths: str) -> None:
    done = CliRunner().invoke(app, ["evaluate", "no", "--text", "no", "--lengths", lengths])
    assert isinstance(done.exception, ArgumentError)
    assert str(done.exception).startswith("lengths: expected")
