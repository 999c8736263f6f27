"""posembed evaluate: quality by length of text, several checkpoints side by side."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from posembed.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.evaluation.results import Evaluation


def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(help="Folders or hub names of models of one kind, each with its tokenizer.", show_default=False),
    ],
    text: Annotated[
        list[Path], typer.Option(help="A text file or a folder of them; may be given again.", show_default=False)
    ],
    lengths: Annotated[str, typer.Option(help="Lengths in tokens, joined by commas.")] = "256,512,1024,2048",
    texts: Annotated[int, typer.Option(help="At most this many texts, the first that are long enough.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Draws the hidden tokens of masked models.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to run; an accelerator if there is one.")] = None,
    results: Annotated[Path, typer.Option(help="Keeps every figure; what stands there is not measured again.")] = Path(
        "runs/evaluations.jsonl"
    ),
    report: Annotated[
        Path | None, typer.Option(help="Write all of it, with a figure, as an HTML page.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure models by length of text, beside cutting and chopping the text at the old length."""
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
        raise ArgumentError(f"--lengths: expected numbers joined by commas, such as 256,512,1024; got {text!r}")
    return [int(number) for number in text.split(",")]


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """One table a measure, all of one form; then the answer, and what a reader must know."""
    from posembed.evaluation.results import is_perplexity
    from posembed.report.evaluation.words import answer, cell, differences, legend

    lengths, wide = evaluation.lengths, max(len(row.name) for row in evaluation.rows) + 2
    for measure in evaluation.measures:
        better = "lower" if is_perplexity(measure) else "higher"
        cells = [[cell(evaluation, row, measure, length) for length in lengths] for row in evaluation.rows]
        narrow = max(len(text) for line in cells for text in line) + 2
        console.print(f"{measure}, by tokens of text: {better} is better", style="bold")
        console.print(" " * wide + "".join(f"{f'{length:,}':>{narrow - 2}}  " for length in lengths).rstrip())
        for row, line in zip(evaluation.rows, cells, strict=True):
            console.print(f"{row.name:<{wide}}" + "".join(f"{text:>{narrow}}" for text in line))
        console.print()
    compared = differences(evaluation)
    if compared:
        measure, reference = evaluation.measures[0], evaluation.reference.name
        title = f"{measure} at {lengths[-1]:,} tokens against {reference}, text by text"
        console.print(title, style="bold")
        for name, difference, said in compared:
            console.print(f"{name:<{wide}}{difference:>14}  {said}")
        console.print()
    for text in (" ".join(answer(evaluation)), legend(evaluation), *evaluation.notes):
        console.print(text)


class Bar:
    """How far the measuring is, on stderr. It appears with the first batch, so that a mistake stands alone."""

    def __init__(self) -> None:
        from posembed.cli.console import plain_console, progress_bar

        self.progress = progress_bar(plain_console(stderr=True))
        self.task = self.progress.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.progress.live.is_started:
            self.progress.stop()

    def update(self, name: str, done: int, total: int) -> None:
        self.progress.start()
        self.progress.update(self.task, description=name, completed=done, total=total)
