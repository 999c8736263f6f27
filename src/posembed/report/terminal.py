"""Prints a page's tables on a terminal: the same cells, with intervals and other notes below the values."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len

from posembed.report.page import Cell, Table, table_of
from posembed.report.words import duration
from posembed.words import amount

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.measure.jobs import Planned

BETWEEN = 2
"""Spaces between columns."""
STYLES = {
    "good": "green",
    "holds": "green",
    "worse": "yellow",
    "bad": "yellow",
    "ends": "cyan",
    "failed": "red",
    "muted": "dim",
}
"""The terminal style of each kind of cell."""


def print_tables(console: Console, tables: Sequence[Table], paragraphs: Sequence[str] = ()) -> None:
    """Prints tables with their titles, then paragraphs. Names the columns that do not fit instead of showing them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    for table in tables:
        columns = fitting_columns(table, console.width)
        shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, BETWEEN - 1, 0, 0))
        lines = max((_lines(table.head[column]).count("\n") + 1 for column in columns), default=1)
        shown.add_column(Text(_at_foot(table.first, lines)), overflow="fold")
        for column in columns:
            cell = table.head[column]
            side: Literal["left", "right"] = "left" if cell.kind == "words" else "right"
            shown.add_column(Text(_at_foot(_lines(cell), lines)), justify=side, overflow="fold")
        for row in table.rows:
            cells = [row.cells[column] for column in columns]
            end = "\n" if any(cell.note for cell in cells) else ""  # values on one line, notes on the next
            texts = (Text(cell.text + end + cell.note, style=STYLES.get(cell.kind, "")) for cell in cells)
            shown.add_row(Text(row.name + end), *texts)
        for part in (Text(table.title, style="bold"), "", shown, ""):
            console.print(part)
        hidden = [" ".join(cell.text.split()) for i, cell in enumerate(table.head) if i not in columns]
        if hidden:
            console.print(Text(f"No space to show these columns: {', '.join(hidden)}."))
    for paragraph in paragraphs:
        console.print(Text(paragraph))


def print_plan(console: Console, planned: Sequence[Planned], title: str, *, first: str = "") -> None:
    """Prints what would run and how long it takes. first: the head of the first column; default: the kind of the
    jobs."""

    trained = [each for each in planned if each.steps is not None]
    of_positions = any(each.position_parameters is not None for each in planned)
    table = table_of(
        planned,
        title,
        "",
        *([("parameters", lambda each: number_of(each.parameters))] if planned[0].parameters is not None else []),
        *([("of positions", lambda each: number_of(each.position_parameters))] if of_positions else []),
        *([("steps", lambda each: number_of(each.steps))] if trained else []),
        ("time", lambda each: "kept" if each.kept else duration(each.seconds)),
        first=first or planned[0].kind,
    )
    total = duration(math.fsum(each.seconds for each in planned))
    done, kept = "trained" if trained else "measured", sum(each.kept for each in planned)
    without = f", without the {amount(kept, 'run')} that the folder holds" if kept else ""
    said = f"About {total} in total on this machine{without}; nothing was {done}."
    if kept == len(planned):
        said = f"The folder holds all of these {planned[0].kind}s; nothing was {done}."
    print_tables(console, [table], [said])


def number_of(amount: int | None) -> str:
    return "" if amount is None else f"{amount:,}"


def fitting_columns(table: Table, width: int) -> list[int]:
    """Returns the indices of the columns that fit into ``width`` characters.

    Columns with the largest rank numbers are hidden first, and columns of rank 0 never. Names longer than half of the
    width, such as paths, are folded.
    """
    names = min(_width([Cell(table.first), *(Cell(row.name) for row in table.rows)]), width // 2)
    widths = [_width([cell, *(row.cells[i] for row in table.rows)]) for i, cell in enumerate(table.head)]
    shown = list(range(len(widths)))
    while names + sum(widths[i] + BETWEEN for i in shown) > width:
        removable = [i for i in shown if table.head[i].rank > 0]
        if not removable:
            break
        shown.remove(max(removable, key=lambda i: table.head[i].rank))
    return shown


def as_text(tables: Sequence[Table], paragraphs: Sequence[str], width: int = 100) -> str:
    from rich.console import Console

    plain: dict[str, Any] = dict.fromkeys(("highlight", "markup", "emoji", "force_jupyter"), False)
    console = Console(file=io.StringIO(), width=width, color_system=None, **plain)
    print_tables(console, tables, paragraphs)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()


def _lines(cell: Cell) -> str:
    return f"{cell.text}\n{cell.note}" if cell.note else cell.text


def _at_foot(text: str, lines: int) -> str:
    return "\n" * (lines - 1 - text.count("\n")) + text


def _width(cells: Sequence[Cell]) -> int:
    return max(cell_len(line) for cell in cells for line in _lines(cell).split("\n"))
