"""A user's text is printed as it is: on every console and bar of the command line, and through the commands."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import posembed.cli
from fresh_process import run_python
from posembed.cli.console import Bar, plain_console
from posembed.nn.encodings import ENCODINGS
from tiny_models import TEXT, saved, tiny_model
from together import asked, together

NAMES = ["[v2]", "[/old]", "[bold]x", ":smile:", "50%", "{x}", "$a$", "\\[x]", 'it\'s "so"', "two\nlines"]
SOURCES = sorted(Path(posembed.cli.__file__).parent.rglob("*.py"))


@together("path", SOURCES)
def test_there_is_one_way_to_a_console(path: Path) -> None:
    """Every other rich Console or column would read a user's text as markup."""
    if path.name == "console.py":
        return
    called = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if is_call(node)}
    assert not called & {"Console", "Progress", "TextColumn"}
    assert "rich.print" not in path.read_text()


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def on_a_terminal(program: str, columns: int) -> str:
    """What a program prints on a terminal this wide, without its colours."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(all_of, ours)
        done = run_python("-c", program, env=environment | {"TERM": "xterm"}, terminal=os.ttyname(theirs))
        os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, reading.result()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", reading.result().decode())


def all_of(terminal: int) -> bytes:
    printed = b""
    with suppress(OSError):  # EIO: nothing has it open any more
        while part := os.read(terminal, 1 << 16):
            printed += part
    return printed


@together("name", NAMES)
def test_a_console_prints_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    console = plain_console()
    table = Table("head")
    table.add_row(name)
    console.print(name)
    console.print(table)
    assert capsys.readouterr().out.count(name.split("\n")[0]) == 2


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_the_bar_of_the_commands_shows_names_as_they_are() -> None:
    program = "from posembed.cli.console import Bar\n" + "".join(
        f"with Bar() as bar: bar.update({name!r}, 1, 3)\n" for name in NAMES
    )
    printed = on_a_terminal(program, 200)
    for name in NAMES:
        assert name.split("\n")[0] in printed


def test_a_log_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """It has a line every 30 seconds instead, and nothing of a bar that is stopped before its end."""
    with Bar(about="ten documents") as bar:
        bar.update("first", 1, 3)
        bar.line_due = 0.0
        bar.update("second (loss 4)", 2, 3)
    assert capsys.readouterr().err == "ten documents\nsecond (loss 4): 67%\n"


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_a_pipe_gets_every_column_and_a_terminal_what_fits() -> None:
    program = """
from posembed.cli.console import plain_console
from posembed.report.page import Cell, Row, Table
from posembed.report.terminal import print_tables
head = tuple(Cell(f"column-{n}", rank=n) for n in range(12))
row = Row("a-long-name/" * 5, tuple(Cell("\N{MINUS SIGN}0.00001") for _ in head))
print_tables(plain_console(), [Table("title", "", head, (row,))], ["a sentence " * 30])
"""
    piped = run_python("-c", program).stdout
    (row,) = (line for line in piped.splitlines() if "a-long-name" in line)
    assert row.split() == ["a-long-name/" * 5, *["\N{MINUS SIGN}0.00001"] * 12]
    assert "a sentence " * 29 in piped
    for columns in (60, *[100] * asked["whole"], 200):
        shown = on_a_terminal(program, columns)
        assert max(map(len, shown.splitlines())) <= columns
        hidden = re.search(r"No space to show these columns: (.*?)\.", " ".join(shown.split()))
        for n in range(12):
            assert f"column-{n}" in shown
        assert hidden is None if columns == 200 else hidden is not None and hidden[1].endswith("column-11")


@pytest.mark.parametrize(
    "arguments", [pytest.param(["encodings"], marks=pytest.mark.whole), ["inspect", "no-such-checkpoint"]]
)
def test_nothing_but_the_command_is_printed_at_exit(arguments: list[str]) -> None:
    """Objects that stay alive at exit let extension modules of other libraries print about leaks."""
    program = (
        "import atexit, gc, sys, torch, posembed.cli\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count()))\n"
        f"sys.argv = ['posembed', *{arguments!r}]; posembed.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.endswith("True 0\n")
    assert len(done.stderr.splitlines()) == (arguments[0] == "inspect"), done.stderr


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
    assert b"[old].onnx: not copied" in text
    assert b"written: " + os.fsencode(tmp_path) + b"/[old] \\udcfe" in text
    code, text = said("resize", source, out, "--length", "64")
    assert code == 1
    assert b"[old] \\udcfe: it exists; choose another name" in text
    code, text = said("resize", "a", "b", "--[/x]")
    assert code == 2
    assert b"--[/x]" in text


# No answer is lost to the encoding of the output, and no name to its width.


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
