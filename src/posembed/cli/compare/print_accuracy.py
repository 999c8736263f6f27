"""Accuracies and their differences as tables on a terminal, the answer in words below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posembed.cli.compare.print_lengths import BETWEEN, Column, that_fit
from posembed.cli.console import table_console
from posembed.lab.questions.accuracy import Difference
from posembed.lab.questions.classification import ClassificationSummary
from posembed.lab.questions.images import ImageSummary
from posembed.report.accuracy_words import percent, points
from posembed.report.classification import words as classification_words
from posembed.report.images import words as image_words
from posembed.report.words import interval
from posembed.statistics import Estimate


def print_classification(summary: ClassificationSummary, console: Console | None = None) -> None:
    """The best first, on the console or else on stdout."""
    rows = classification_words.best_first(summary)
    columns = [
        Column("encoding", tuple(Text(row.encoding) for row in rows), 0, left=True),
        Column("accuracy", tuple(_accuracy(row.accuracy) for row in rows), 1),
    ]
    if summary.uneven:
        columns.append(Column("macro\nF1", tuple(_accuracy(row.macro_f1) for row in rows), 5))
    against = f"less {summary.reference}'s"
    columns += [
        Column(against, tuple(_difference(row.difference) for row in rows), 2),
        Column("95% interval\nover seeds", tuple(_interval(row.difference, documents=False) for row in rows), 3),
        Column("95% interval\nover documents", tuple(_interval(row.difference, documents=True) for row in rows), 4),
    ]
    title = f"Held-out examples told, percent, of {summary.examples:,} in {len(summary.classes)} classes"
    _print(title, columns, classification_words.answer(summary), console)


def print_images(summary: ImageSummary, console: Console | None = None) -> None:
    """The best at the size trained on first, on the console or else on stdout."""
    rows = image_words.best_first(summary)
    columns = [Column("encoding", tuple(Text(row.encoding) for row in rows), 0, left=True)]
    for size in summary.test_sizes:
        head = f"{size:,}\ntrained" if size == summary.train_size else f"{size:,}"
        rank = 1 if size in (summary.train_size, summary.farthest) else 3
        columns.append(Column(head, tuple(_accuracy(row.accuracy.get(size)) for row in rows), rank))
    far = summary.farthest
    columns.append(
        Column(
            f"at {far:,}, less\n{summary.reference}'s",
            tuple(_difference(row.difference.get(far)) for row in rows),
            2,
        )
    )
    spans = tuple(_interval(row.difference.get(far), documents=False) for row in rows)
    columns.append(Column("95% interval\nover seeds", spans, 4))
    title = "Held-out images told, percent, by the side of the images in pixels"
    _print(title, columns, image_words.answer(summary), console)


def _print(title: str, columns: Sequence[Column], words: Sequence[str], console: Console | None) -> None:
    """Columns that do not fit are left out and named, so that no number is ever broken."""
    console = console or table_console()
    shown = that_fit(columns, console.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, BETWEEN - 1, 0, 0))
    for column in shown:
        table.add_column(column.head, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    for part in ("", Text(title, style="bold"), "", table, "", *map(Text, words)):
        console.print(part)
    if len(shown) < len(columns):
        names = ", ".join(" ".join(column.head.split()) for column in columns if column not in shown)
        console.print(Text(f"Left out, for want of room: {names}."))


def _accuracy(estimate: Estimate | None) -> Text:
    return Text("-", style="dim") if estimate is None else Text(percent(estimate.mean))


def _difference(difference: Difference | None) -> Text:
    if difference is None:
        return Text("")
    mean = difference.over_seeds.mean
    return Text(points(mean), style=("green" if mean > 0 else "yellow") if difference.told else "")


def _interval(difference: Difference | None, *, documents: bool) -> Text:
    if difference is None:
        return Text("")
    return Text(interval(difference.over_documents if documents else difference.over_seeds, points))
