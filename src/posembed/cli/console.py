"""Consoles for commands. They print a user's text (paths, names, messages) literally, never as markup."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from posembed.cli.options import print_measured
from posembed.measure.jobs import SETTINGS
from posembed.measure.processes import launched

if TYPE_CHECKING:
    from typing_extensions import Self

    from posembed.report.page import Table

WIDER_THAN_ANY_TABLE = 10_000
SECONDS_BETWEEN_LINES = 30.0


def plain_console(**options: Any) -> Console:
    """Returns a rich Console that prints ``[v2]`` and ``:smile:`` literally. Outside a terminal it shows every column
    and breaks no line."""
    console = Console(highlight=False, markup=False, emoji=False, **options)
    if not console.is_terminal:
        console.width = WIDER_THAN_ANY_TABLE
    return console


def print_result(found: Any, shape: str, tables: Sequence[Table], paragraphs: Sequence[str]) -> None:
    """Prints a result that has ``to_dict`` and ``frame``. shape: "json", "csv" or "" for tables and paragraphs."""
    if shape:
        print_measured(found, shape)
        return
    from posembed.report.terminal import print_tables

    print_tables(plain_console(), tables, paragraphs)


@contextmanager
def told_when_stopped(folder: Path, *, continues: bool = True) -> Iterator[None]:
    """Ends the command on Ctrl-C in the block, and prints how to continue the run. folder: the run folder. continues:
    whether what was done is kept there."""
    try:
        yield
    except KeyboardInterrupt:
        said = "nothing was written, and the same command starts again"
        if (folder / SETTINGS).exists():
            said = f"the same command {'continues from' if continues else 'measures again into'} {folder}"
        if launched().rank == 0:
            print(f"posembed: stopped; {said}", file=sys.stderr)
        raise Exit(130) from None


class Bar:
    """A progress bar on stderr, below the text ``about``. It shows the current part, the share done and the time left.

    The bar appears with the first step, so that an earlier error is printed without it. If stderr is not a terminal,
    there is no bar but a line every 30 seconds.
    """

    def __init__(self, *, about: str = "", quiet: bool = False) -> None:
        self.about, self.begun = about, False
        self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES
        self.console = plain_console(stderr=True, quiet=quiet or launched().rank > 0)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left", markup=False),
            console=self.console,
            expand=True,
            speed_estimate_period=60,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.begun and not self.progress.disable:  # rich before 14.3 prints an empty line otherwise
            self.progress.stop()

    def update(self, name: str, done: int, total: int) -> None:
        if not self.begun:
            self.begun = True
            if self.about:
                self.console.print(self.about)
            self.progress.start()
        self.progress.update(self.task, description=name, completed=done, total=total)
        if total and not self.console.is_terminal and time.monotonic() > self.line_due:
            self.console.print(f"{name}: {done / total:.0%}")
            self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES
