"""A user's text is printed as it is: on every console and bar of the command line, and through the commands."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

import posembed.cli
from posembed.cli.console import Bar, plain_console, table_console
from tiny_models import TEXT, saved, tiny_model

NAMES = ["[v2]", "[/old]", "[bold]x", ":smile:", "50%", "{x}", "$a$", "\\[x]", 'it\'s "so"', "two\nlines"]
SOURCES = sorted(Path(posembed.cli.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_there_is_one_way_to_a_console(path: Path) -> None:
    """Every other rich Console or column would read a user's text as markup."""
    if path.name == "console.py":
        return
    called = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if is_call(node)}
    assert not called & {"Console", "Progress", "TextColumn"}
    assert "rich.print" not in path.read_text()


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize("name", NAMES)
def test_a_console_prints_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    for console in (plain_console(), table_console()):
        table = Table("head")
        table.add_row(name)
        console.print(name)
        console.print(table)
        assert capsys.readouterr().out.count(name.split("\n")[0]) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_bar_of_the_commands_shows_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar.progress.live.console = plain_console(stderr=True, width=200)
        bar.update(name, 1, 3, now=name)
    assert capsys.readouterr().err.count(name.split("\n")[0]) == 2


def test_commands_print_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def said(*arguments: str | Path) -> tuple[object, bytes]:
        monkeypatch.setattr(sys, "argv", ["posembed", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            posembed.cli.main()
        captured = capfdbinary.readouterr()
        return ended.value.code, captured.out + captured.err

    source, out = saved(tiny_model("bert", TEXT), tmp_path / "[v2] é\udcff"), tmp_path / "[old] \udcfe"
    (source / "[old].onnx").write_bytes(b"")
    code, text = said("resize", source, out, "--length", "64")
    assert code == 0
    assert b"[old].onnx: left out" in text
    assert b"written: " + os.fsencode(tmp_path) + b"/[old] \\udcfe" in text
    code, text = said("resize", source, out, "--length", "64")
    assert code == 1
    assert b"[old] \\udcfe: it exists; choose another name" in text
    code, text = said("resize", "a", "b", "--[/x]")
    assert code == 2
    assert b"--[/x]" in text
