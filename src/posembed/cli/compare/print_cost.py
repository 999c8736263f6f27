"""A measurement of cost on a terminal: the tables of its page, then the answer."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from posembed.cli.console import table_console
from posembed.lab.cost.results import CostResult
from posembed.report.cost.report import about
from posembed.report.cost.tables import cost_tables
from posembed.report.cost.words import answer
from posembed.report.page import Table


def print_cost(result: CostResult, console: Console | None = None) -> None:
    console = console or table_console()
    for table in cost_tables(result)[:-1]:  # times at every length are too wide
        print_table(console, table)
    for sentence in answer(result):
        console.print(Text(sentence))
    console.print(Text(f"{about(result)} torch {result.environment['torch']}; {result.seconds:.0f} s.", style="dim"))


def print_table(console: Console, table: Table) -> None:
    """Prints a table of the page, with intervals next to their medians."""
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    for cell in table.head:
        shown.add_column(Text(cell.text), justify="left" if cell.kind == "words" else "right", vertical="bottom")
    for row in table.rows:
        texts = (Text(f"{cell.text} ({cell.note})" if cell.note else cell.text) for cell in row.cells)
        shown.add_row(Text(row.name), *texts)
    for part in (Text(table.title, style="bold"), shown, ""):
        console.print(part)
