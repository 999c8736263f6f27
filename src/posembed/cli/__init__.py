"""The command line. Each command parses its options, calls the library and prints. Torch is imported only if needed."""

from __future__ import annotations

import io
import os
import re
import sys

import rich_click as click

from posembed._version import __version__
from posembed.cli import advise, checkpoints, compare, encodings, push, tune
from posembed.errors import ArgumentError, PosEmbedError
from posembed.files import reason
from posembed.measure.processes import launched
from posembed.words import brief

NO_MEMORY = re.compile("(can't|not enough) .*memory|out of memory|Storage size calculation overflowed")
"""Matches PyTorch's errors on tensors that are too large. On a CPU, these have no exception type of their own."""
app = click.RichGroup(
    name="posembed",
    help="Learned position embeddings: compare encodings by experiment, inspect and resize position tables.",
    params=[click.RichOption(["--debug"], is_flag=True, help="Show the traceback of an error.")],
    commands=[
        *(compare.app, encodings.encodings, compare.report, checkpoints.inspect, checkpoints.resize),
        *(checkpoints.check, push.push, checkpoints.evaluate, tune.tune, advise.advise),
    ],
    no_args_is_help=True,
    callback=lambda debug: None,
)
click.version_option(__version__, message="%(prog)s %(version)s")(app)


def main() -> None:
    """Runs the command. An error raised by posembed becomes one line on stderr and exit code 1."""
    if rank := launched().rank:
        print_no_more()
    for stream in (sys.stdout, sys.stderr):  # file names may not be UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app.main(standalone_mode=False)
        sys.stdout.flush()  # reports a full disk here
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):  # click.Abort is a RuntimeError
        sys.exit(130)
    except (PosEmbedError, MemoryError, RuntimeError, OSError) as error:
        said = on_one_line(error)
        if said is None or "--debug" in sys.argv:
            raise
        if not (rank and isinstance(error, ArgumentError)):  # the first process has the same arguments
            print(f"posembed: error: {said}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename is None:
            print_no_more()  # Python writes the rest again when it exits
        sys.exit(1)


def on_one_line(error: Exception) -> str | None:
    """Returns what the user is told of an error; None for a fault of posembed, which shows its traceback."""
    if isinstance(error, PosEmbedError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):  # errors of streams have no file name
        return f"{'the output cannot be written' if error.filename is None else error.filename}: {reason(error)}"
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        return f"there is not enough memory for these sizes: {brief(error)}"
    return None


def print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
