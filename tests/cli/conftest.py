"""One way to run the command line in a test, as a user runs it."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from posembed import cli


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def posembed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command in this process. Paths may be given as further arguments; ``typed`` is what a person types."""

    def run(command: str, *arguments: object, typed: str | None = None, columns: int = 100) -> Done:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["posembed", *shlex.split(command), *map(str, arguments)])
        if typed is not None:
            monkeypatch.setattr(sys, "stdin", Terminal(typed))
        capfd.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("a line of text that comes again and again\n" * 100, encoding="utf-8")
    return file
