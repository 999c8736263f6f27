"""The command line. Each command parses its options, calls the library and prints. Torch is imported only if needed."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from posembed._version import __version__
from posembed.cli import advise, checkpoints, compare, encodings, tune
from posembed.errors import PosEmbedError
from posembed.files import reason

app = typer.Typer(
    name="posembed",
    help="Learned position embeddings: compare encodings by experiment, inspect and resize position tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(compare.app, name="compare")
app.command()(encodings.encodings)
app.command()(compare.report)
app.command()(checkpoints.inspect)
app.command()(checkpoints.resize)
app.command()(checkpoints.evaluate)
app.command()(tune.tune)
app.command()(advise.advise)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"posembed {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Runs the command. An error raised by posembed becomes one line on stderr and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # file names may not be UTF-8, and neither may the terminal
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # reports a full disk here
    except PosEmbedError as error:
        if "--debug" in sys.argv:
            raise
        print(f"posembed: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or "--debug" in sys.argv:  # errors of streams have no file name
            raise
        print(f"posembed: error: the output cannot be written: {reason(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest again when it exits
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
