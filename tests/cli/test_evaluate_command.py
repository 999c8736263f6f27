"""posembed evaluate: parses, calls the library and prints one table a measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluated_models import save_causal, write_texts
from posembed.cli import app
from posembed.cli.evaluate import whole_numbers
from posembed.errors import ArgumentError


def test_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("gpt"))
    write_texts(Path("text"))
    words = ["evaluate", "gpt", "--text", "text", "--lengths", "32,64,1024", "--texts", "2", "--device", "cpu"]
    failed = CliRunner().invoke(app, words)
    assert "expected 1 texts or more of 1,024 tokens" in str(failed.exception)
    words[5] = "32,64,128"
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "perplexity, by tokens of text: lower is better"
    assert lines[1].split() == ["32", "64", "128"]
    assert lines[2].startswith("gpt ")
    assert lines[2].endswith("no row")
    assert lines[3].startswith("gpt, cut or chopped at 64 ")
    assert "gpt holds 64 positions" in done.stdout
    assert Path("runs/evaluations.jsonl").exists()
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert printed["rows"][0]["values"]["perplexity"]["128"] is None


def test_whole_numbers() -> None:
    assert whole_numbers("256,512") == [256, 512]
    for text in ("", "256,", "a", "-3", "1e3", "256 512"):
        with pytest.raises(ArgumentError, match="--lengths"):
            whole_numbers(text)
