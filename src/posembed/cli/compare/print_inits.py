"""A comparison of initial values on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posembed.cli.compare.print_lengths import BETWEEN, Column, that_fit
from posembed.cli.console import table_console
from posembed.lab.questions.inits import InitSummary
from posembed.report.inits.words import answer, best_first, loss_number, signed, told
from posembed.report.words import interval, number
from posembed.statistics import Estimate

COLOURS = {"lower": "green", "higher": "yellow", "untold": "", "unknown": ""}


def print_inits(summary: InitSummary, console: Console | None = None) -> None:
    """One table, the lowest loss first, and the answer in words, on the console or else on stdout."""
    console = console or table_console()
    columns = init_columns(summary)
    shown = that_fit(columns, console.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, BETWEEN - 1, 0, 0))
    for column in shown:
        table.add_column(column.head, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    title = Text(f"Held-out loss after {summary.steps:,} steps, nats a token: lower is better", style="bold")
    for part in ("", title, "", table, ""):
        console.print(part)
    for paragraph in answer(summary):
        console.print(Text(paragraph))
    for row in summary.rows:
        for failure in row.failures:
            console.print(Text(f"{row.init}, {failure}"))
    left_out = ", ".join(" ".join(column.head.split()) for column in columns if column not in shown)
    if left_out:
        console.print(Text(f"Left out, for want of room: {left_out}."))


def init_columns(summary: InitSummary) -> list[Column]:
    rows = best_first(summary)

    def column(
        head: str, estimates: list[Estimate | None], write: Callable[[float], str], rank: int, style: str = ""
    ) -> Column:
        return Column(head, tuple(Text("-" if e is None else write(e.mean), style=style) for e in estimates), rank)

    columns = [
        Column("start", tuple(Text(row.init) for row in rows), 0, left=True),
        column("loss", [row.loss for row in rows], loss_number, 1),
    ]
    if any(row.versus_reference for row in rows):
        differences = tuple(
            Text(
                signed(row.versus_reference.mean) if row.versus_reference else "-",
                COLOURS[told(row.versus_reference)],
            )
            for row in rows
        )
        columns.append(Column(f"less\n{summary.reference}", differences, 2))
        intervals = tuple(Text(interval(row.versus_reference, signed)) for row in rows)
        if any(intervals):
            columns.append(Column("95% interval\nof it", intervals, 3))
    if summary.loss is not None:
        columns.append(
            column(f"steps\nto {loss_number(summary.loss)}", [row.steps for row in rows], lambda v: f"{v:,.0f}", 4)
        )
    columns += [
        column("rows moved\ntheir scale", [row.moved_times for row in rows], number, 5),
        column("cosine\nto start", [row.cosine for row in rows], lambda v: f"{v:.2f}", 6),
        column("rank\nafter", [row.effective_rank_after for row in rows], lambda v: f"{v:.1f}", 7),
        column("neighbour\ncosine", [row.neighbour_cosine_after for row in rows], lambda v: f"{v:.2f}", 8),
    ]
    return columns
