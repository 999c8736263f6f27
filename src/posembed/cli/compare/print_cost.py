"""A measurement of cost on a terminal: the answer, then the tables that answer most."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from posembed.cli.console import table_console
from posembed.lab.cost.results import CostResult
from posembed.lab.cost.sizes import KNOWN
from posembed.report.cost.tables import inside_table, memory_table, parameter_table, size_table, time_table
from posembed.report.cost.words import answer, cheapest_first, machine, yours
from posembed.report.page import Table


def print_cost(result: CostResult, console: Console | None = None) -> None:
    console = console or table_console()
    tables = [time_table(result), inside_table(result), parameter_table(result), memory_table(result)]
    for table in (*tables, size_table([yours(result), *KNOWN])):
        print_table(console, table)
    console.print(Text("Growth with length, alone: time and memory as a power of length", style="bold"))
    for row in cheapest_first(result):
        growth = row.growth
        powers = ["-" if power is None else f"{power:.2f}" for power in (growth.time_exponent, growth.memory_exponent)]
        why = "" if growth.stopped is None else f": {growth.stopped}"
        text = f"{row.encoding}: {powers[0]} and {powers[1]}, to {max(growth.lengths):,} tokens{why}"
        console.print(Text(f"  {text}"))
    console.print()
    for sentence in answer(result):
        console.print(Text(sentence))
    rounds = result.attention
    where = f"{machine(result)}, torch {result.environment['torch']}"
    how = f"medians of {len(rounds.forward.values)} and {len(rounds.backward.values)} rounds, with 95% intervals"
    console.print(Text(f"{where}; {how}; {result.seconds:.0f} s in all.", style="dim"))


def print_table(console: Console, table: Table) -> None:
    """A table of the page; intervals stand beside their medians."""
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    for cell in table.head:
        shown.add_column(Text(cell.text), justify="left" if cell.kind == "words" else "right", vertical="bottom")
    for row in table.rows:
        texts = (Text(f"{cell.text} ({cell.note})" if cell.note else cell.text) for cell in row.cells)
        shown.add_row(Text(row.name), *texts)
    for part in (Text(table.title, style="bold"), shown, ""):
        console.print(part)
