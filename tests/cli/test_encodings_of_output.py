"""No answer is lost to the encoding of the output, and no name to its width."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.test_console import on_a_terminal
from fresh_process import run_python
from posembed.nn.encodings import ENCODINGS

CODINGS = ["ascii", "cp1252", "utf-8"]
SAID = "difference \N{MINUS SIGN}0.3 (\N{MINUS SIGN}0.5\N{EN DASH}0.1), ∞, “none”, 日本 \ud800"


@pytest.mark.parametrize("coding", CODINGS)
def test_whatever_is_said_is_printed(coding: str) -> None:
    program = (
        "import sys, posembed.cli as cli\n"
        f"def said(): print({SAID!r}); print({SAID!r}, file=sys.stderr)\n"
        "cli.app.main = lambda standalone_mode: said(); cli.main()"
    )
    done = run_python("-c", program, env={**os.environ, "PYTHONIOENCODING": coding})
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert "\\ud800" in text
        if coding == "utf-8":
            assert SAID[:-1] in text
        else:
            assert "\\u65e5" in text
        if coding == "ascii":
            assert text.startswith(r"difference \u22120.3 (\u22120.5\u20130.1), \u221e, ")


@pytest.mark.whole
@pytest.mark.parametrize("coding", ["cp1252"])
def test_an_answer_after_training(coding: str, tmp_path: Path) -> None:
    sizes = "--steps 2 --layers 1 --width 16 --heads 2 --batch 2 --seeds 2"
    command = f"-m posembed compare tasks images --encodings learned-1d,none {sizes} --out".split()
    done = run_python(*command, tmp_path, env={**os.environ, "PYTHONIOENCODING": coding})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "learned-1d" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
@pytest.mark.parametrize("columns", [100, pytest.param(200, marks=pytest.mark.whole)])
def test_no_name_and_no_address_is_cut(columns: int) -> None:
    words = on_a_terminal(
        "import sys, posembed.cli; sys.argv[1:] = ['encodings']; posembed.cli.main()", columns
    ).split()
    for name, entry in ENCODINGS.items():
        assert name in words
        assert not set(entry.paper.split()) - set(words)
