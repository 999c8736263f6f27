from __future__ import annotations

import json
import sys

import pytest

from posembed import cli
from posembed.nn.encodings import ENCODINGS, names_for


def posembed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["posembed", *command.split()])
    monkeypatch.setenv("COLUMNS", "140")
    code = 0
    try:
        cli.main()
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    return code, *capfd.readouterr()


def test_every_encoding_with_what_it_learns(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    sizes = "--width 64 --heads 4 --length 128 --layers 3"
    code, out, _ = posembed(monkeypatch, capfd, f"encodings {sizes} --json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == list(ENCODINGS)
    for name, row in rows.items():
        assert row["line"] == ENCODINGS[name].line
        assert row["paper"] == ENCODINGS[name].paper
    learned = {
        "learned": 128 * 64,
        "rolling": 32 * 64,
        "sinusoidal": 0,
        "rope": 0,
        "alibi": 0,
        "t5": 32 * 4,
        "kerple-log": 2 * 4,
        "kerple-power": 2 * 4,
        "fire": 2 * 32 + 32 * 4 + 4 + 2,
        "pope": 4 * 16,
        "rope-yarn": 0,
        "learned-1d": (1 + 14 * 14) * 64,
        "factorized": (1 + 14 + 14) * 64,
        "none": 0,
    }
    assert {name: rows[name]["parameters"] for name in learned} == learned
    assert {name for name, row in rows.items() if "encoder" in row["models"]} == set(names_for("encoder"))


def test_the_table_shows_all_of_it(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = posembed(monkeypatch, capfd, "encodings")
    assert code == 0
    for name in ENCODINGS:
        assert f"\n{name} " in out
    assert "786,432" in out  # 1,024 x 768
    assert "arXiv:2310.04418" in out
    assert "width 768, 12 heads, 1,024 tokens, 12 layers" in out


def test_a_size_that_cannot_be(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = posembed(monkeypatch, capfd, "encodings --width 12 --heads 4")
    assert (code, out) == (1, "")
    assert "even" in err
