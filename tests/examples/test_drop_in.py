"""The examples that put posembed's layers into models of transformers; each asserts what it says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the example prints."""
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_gpt2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("drop_in_gpt2.py", monkeypatch, capsys)
    assert "the same logits, and the same tokens from left-padded prompts" in printed
    assert "posembed, 33 tokens: position 32 has no row: 33 tokens from offset 0 reach it, and this table" in printed


def test_bert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("drop_in_bert.py", monkeypatch, capsys)
    assert "the same logits, and the same tokens from left-padded prompts" in printed
