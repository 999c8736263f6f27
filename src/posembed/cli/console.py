"""Where commands print to. A user's text (paths, names, messages) is printed as it is, never read as markup."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

WIDTH_OF_A_FILE = 100


def plain_console(**options: Any) -> Console:
    """A rich Console that takes ``[v2]`` and ``:smile:`` for what they are."""
    return Console(highlight=False, markup=False, emoji=False, **options)


def table_console() -> Console:
    """Standard output for tables: as wide as the terminal, and elsewhere wide enough for most of them."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=max(console.width, WIDTH_OF_A_FILE))


def progress_bar(console: Console, *texts: str, **options: Any) -> Progress:
    """A bar with a description, the share that is done, and the time left. texts: templates of further columns."""
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
