"""Consoles for commands. A user's text (paths, names, messages) is printed literally, never read as markup."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

WIDTH_OF_A_FILE = 100


def plain_console(**options: Any) -> Console:
    """Returns a rich Console that prints ``[v2]`` and ``:smile:`` literally."""
    return Console(highlight=False, markup=False, emoji=False, **options)


def table_console() -> Console:
    """Returns standard output for tables: as wide as the terminal, or else wide enough for most tables."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=max(console.width, WIDTH_OF_A_FILE))


def progress_bar(console: Console, *texts: str, **options: Any) -> Progress:
    """Returns a bar with a description, the share done, and the time left. ``texts``: templates of more columns."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        *(TextColumn(text, markup=False) for text in texts),
        TimeRemainingColumn(compact=True),
        TextColumn("left", markup=False),
        console=console,
        expand=True,
        **options,
    )
