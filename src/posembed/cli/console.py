"""Consoles for commands. A user's text (paths, names, messages) is printed literally, never read as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from typing_extensions import Self

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


class Bar:
    """Progress on stderr. The bar appears with the first step, so that an earlier error is printed alone.

    about: printed above the bar. texts: templates of more columns, see ``progress_bar``.
    """

    def __init__(self, *texts: str, total: int | None = None, about: str = "", quiet: bool = False) -> None:
        self.about = about
        self.console = plain_console(stderr=True, quiet=quiet)
        self.progress = progress_bar(self.console, *texts, speed_estimate_period=120 if texts else 30)
        self.task = self.progress.add_task("starting", total=total, now="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress.live.is_started:
            self.progress.stop()

    def show(self, name: str, done: int, **changed: Any) -> None:
        if not self.progress.live.is_started:
            if self.about:
                self.console.print(self.about)
            self.progress.start()
        self.progress.update(self.task, description=name, completed=done, **changed)

    def update(self, name: str, done: int, total: int) -> None:
        self.show(name, done, total=total)
