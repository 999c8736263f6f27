"""posembed evaluate: quality by text length, for several checkpoints on the same texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posembed.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.evaluation.results import Evaluation
    from posembed.report.page import Table


def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(help="Folders or hub names of models of one kind, each with its tokenizer.", show_default=False),
    ],
    text: Annotated[
        list[Path], typer.Option(help="A text file or a folder of them; can be repeated.", show_default=False)
    ],
    lengths: Annotated[str, typer.Option(help="Lengths in tokens, separated by commas.")] = "256,512,1024,2048",
    texts: Annotated[int, typer.Option(help="Maximum number of texts; the first that are long enough.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Draws the masked tokens of masked language models.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Where the models run. Default: an accelerator if there is one.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Keeps every count; what it holds is not measured again.")] = Path(
        "runs/evaluations.jsonl"
    ),
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML page with a figure.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure models at several text lengths, compared with truncating and chunking at the old length."""
    import json

    from posembed.evaluation.api import evaluate_checkpoints

    if report is not None:
        from posembed.report.page import refuse_page

        refuse_page(report, option="--report")
    with Bar() as bar:
        evaluation = evaluate_checkpoints(
            checkpoints,
            text,
            lengths=whole_numbers(lengths),
            texts=texts,
            seed=seed,
            device=device,
            results=results,
            progress=bar.update,
        )
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        from posembed.cli.console import plain_console

        print_evaluation(plain_console(soft_wrap=True), evaluation)
    if report is not None:
        from posembed.report.evaluation.report import write_evaluation_page

        written = write_evaluation_page(evaluation, report)
        print(f"report: {written}", file=sys.stderr if as_json else sys.stdout)


def whole_numbers(text: str) -> list[int]:
    """ "256,512" -> [256, 512]."""
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text) is None:
        raise ArgumentError(f"--lengths: expected numbers separated by commas, such as 256,512,1024; got {text!r}")
    return [int(number) for number in text.split(",")]


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """The tables of the page, then the answer, the legend and the notes."""
    from posembed.report.evaluation.tables import answer, legend, tables

    print_tables(console, tables(evaluation))
    for text in (" ".join(answer(evaluation)), legend(evaluation), *evaluation.notes):
        console.print(text)


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Each table with its title, the cells in columns as wide as their longest text."""
    for table in tables:
        lines = [[table.first, *(cell.text for cell in table.head)]]
        lines += [[row.name, *(f"{cell.text} {cell.note}".strip() for cell in row.cells)] for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        console.print(table.title, style="bold")
        for line in lines:
            console.print("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
        console.print()


class Bar:
    """Progress on stderr. The bar appears with the first batch, so that an earlier error is printed alone."""

    def __init__(self) -> None:
        from posembed.cli.console import plain_console, progress_bar

        self.progress = progress_bar(plain_console(stderr=True))
        self.task = self.progress.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress.live.is_started:
            self.progress.stop()

    def update(self, name: str, done: int, total: int) -> None:
        self.progress.start()
        self.progress.update(self.task, description=name, completed=done, total=total)
