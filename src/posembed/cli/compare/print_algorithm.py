"""The exact match by problem size, as a table on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posembed.cli.compare.print_lengths import BETWEEN, Column, that_fit
from posembed.cli.console import table_console
from posembed.lab.questions.algorithms import AlgorithmSummary, is_solved
from posembed.report.algorithms.words import answer, best_first, interval, percent, solves_in_words
from posembed.statistics import Estimate


def print_algorithm(summary: AlgorithmSummary, console: Console | None = None) -> None:
    """The answer in words, then one table, the best first, on the console or else on stdout.

    Columns that do not fit are left out and named, so that no number is ever broken.
    """
    console = console or table_console()
    columns = algorithm_columns(summary)
    shown = that_fit(columns, console.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, BETWEEN - 1, 0, 0))
    for column in shown:
        table.add_column(column.head, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    title = f"Exact match in percent, {summary.problem}, by {summary.unit}; trained up to {summary.train_size:,}"
    for part in ("", Text(title, style="bold"), "", table, "", *map(Text, answer(summary))):
        console.print(part)
    console.print(Text("-: the encoding has no position there.", style="dim"))
    if len(shown) < len(columns):
        names = ", ".join(" ".join(column.head.split()) for column in columns if column not in shown)
        console.print(Text(f"Left out, for want of room: {names}."))


def algorithm_columns(summary: AlgorithmSummary) -> list[Column]:
    rows, longest = best_first(summary), max(summary.test_sizes)
    columns = [Column("encoding", tuple(Text(row.encoding) for row in rows), 0, left=True)]
    for size in summary.test_sizes:
        head = f"{size:,}\ntrained" if size == summary.train_size else f"{size:,}"
        rank = 2 if size in (longest, summary.train_size) else 4
        columns.append(Column(head, tuple(_share(row.exact_match[size]) for row in rows), rank))
    intervals = [interval(row.exact_match[longest]) for row in rows]
    if any(intervals):
        columns.append(Column(f"95% interval\nat {longest:,}", tuple(map(Text, intervals)), 3))
    columns.append(Column("solves", tuple(Text(solves_in_words(row, summary)) for row in rows), 1))
    return columns


def _share(share: Estimate | None) -> Text:
    if share is None:
        return Text("-", style="dim")
    return Text(percent(share.mean), style="green" if is_solved(share.mean) else "")
