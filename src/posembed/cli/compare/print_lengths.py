"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posembed.cli.console import table_console
from posembed.lab.questions.lengths import LengthSummary, base_length
from posembed.report.lengths.words import HOLDS, REACHES, best_first, reach, reach_in_words, verdict
from posembed.report.words import interval, number, runs_of_each
from posembed.statistics import Estimate

COLOURS = {"holds": "green", "worse": "yellow", "ends": "cyan", "failed": "red", "untested": ""}
BETWEEN = 2


@dataclass(frozen=True)
class Column:
    head: str
    cells: tuple[Text, ...]
    rank: int
    """Of columns that do not fit, those of the highest rank are left out first."""
    left: bool = False

    @property
    def width(self) -> int:
        return max(len(line) for line in [*self.head.splitlines(), *(cell.plain for cell in self.cells)])


def print_lengths(summary: LengthSummary, console: Console | None = None) -> None:
    """The comparison as one table, the best at the longest length first, on the console or else on stdout.

    Columns that do not fit are left out and named, so that no number is ever broken.
    """
    console = console or table_console()
    columns = length_columns(summary)
    shown = that_fit(columns, console.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, BETWEEN - 1, 0, 0))
    for column in shown:
        table.add_column(column.head, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    title = Text("Perplexity of the same tokens, by tokens of context: lower is better", style="bold")
    for part in ("", title, "", table, ""):
        console.print(part)
    for note in notes(summary, left_out=[column for column in columns if column not in shown]):
        console.print(Text(note))


def length_columns(summary: LengthSummary) -> list[Column]:
    rows = best_first(summary)
    trained, longest = summary.train_length, max(summary.test_lengths)
    verdicts = [verdict(row, summary) for row in rows]
    columns = [Column("encoding", tuple(Text(row.encoding) for row in rows), 0, left=True)]
    if any(row.window for row in rows):
        columns.append(Column("window", tuple(Text(f"{row.window:,}" if row.window else "") for row in rows), 7))
    for length in summary.test_lengths:
        head = f"{length:,}\ntrained" if length == trained else f"{length:,}"
        rank = 1 if length == longest else 3 if length == trained else 6
        columns.append(Column(head, tuple(_perplexity(row.same_tokens.get(length)) for row in rows), rank))
    intervals = [interval(row.same_tokens.get(longest)) for row in rows]
    if any(intervals):
        columns.append(Column(f"95% interval\nat {longest:,}", tuple(map(Text, intervals)), 5))
    chopped = tuple(_perplexity(row.chopped_same_tokens.get(longest)) for row in rows)
    columns.append(Column(f"chopped\nat {trained:,}", chopped, 8))
    columns.append(
        Column(f"past {trained:,}", tuple(Text(v.text, style=COLOURS[v.kind]) for v in verdicts), 2, left=True)
    )
    if summary.gaps:
        columns.append(Column("reaches\nback", tuple(Text(reach_in_words(row, summary)) for row in rows), 4))
    return columns


def that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns without those of the highest ranks, until the rest stand side by side; at least one is left."""
    shown = list(columns)
    while len(shown) > 1 and sum(column.width + BETWEEN for column in shown) - BETWEEN > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    return shown


def notes(summary: LengthSummary, *, left_out: Sequence[Column] = ()) -> list[str]:
    """What a reader must know to read the table, a line each."""
    trained, base = summary.train_length, base_length(summary)
    several = any(len(row.seeds) > 1 for row in summary.rows)
    known = "95% intervals by Student's t" if several else "no interval is known, and small differences may be chance"
    lines = [f"{runs_of_each(summary.rows).capitalize()}; {known}."]
    if base is not None:
        lines.append(f"holds: past {trained:,}, never above {HOLDS:g} times its own perplexity at {base:,}.")
    lines.append(f"chopped: the same model and tokens, the text fed in pieces of {trained:,}.")
    if summary.gaps:
        lines.append(
            "reaches back: how many tokens may lie between a passage and its repetition for the first to lower "
            f"the loss of the second, by {REACHES:g} nats a token or more."
        )
        holding = [row for row in summary.rows if verdict(row, summary).kind == "holds"]
        if holding and all((reach(row, summary) or 0) <= trained for row in holding):
            lines.append(f"Low perplexity is not reach: none that holds used text more than {trained:,} tokens back.")
    lines += [f"{row.encoding}, {failure}" for row in summary.rows for failure in row.failures]
    if left_out:
        names = ", ".join(" ".join(column.head.split()) for column in left_out)
        lines.append(f"Left out, for want of room: {names}.")
    return lines


def _perplexity(estimate: Estimate | None) -> Text:
    return Text("-", style="dim") if estimate is None else Text(number(estimate.mean))
