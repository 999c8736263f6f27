"""posembed evaluate: quality by text length, for several checkpoints on the same texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posembed.cli.options import numbers

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.evaluation.results import Evaluation


def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(help="Folders or hub names of models of one kind, each with its tokenizer.", show_default=False),
    ],
    text: Annotated[
        list[Path], typer.Option(help="A text file or a folder of them; can be repeated.", show_default=False)
    ],
    lengths: Annotated[
        Any,
        typer.Option(help="Lengths in tokens, separated by commas.", parser=numbers(int, "256,512"), metavar="N,N,..."),
    ] = "256,512,1024,2048",
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
    """Measure models at several text lengths, compared with truncating and chunking at the original length."""
    import json

    from posembed.cli.console import Bar, table_console
    from posembed.evaluation.api import evaluate_checkpoints

    if report is not None:
        from posembed.report.page import refuse_page

        refuse_page(report, option="--report")
    with Bar() as bar:
        evaluation = evaluate_checkpoints(
            checkpoints,
            text,
            lengths=lengths,
            texts=texts,
            seed=seed,
            device=device,
            results=results,
            progress=bar.update,
        )
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        print_evaluation(table_console(), evaluation)
    if report is not None:
        from posembed.report.evaluation import write_evaluation_page

        written = write_evaluation_page(evaluation, report)
        print(f"report: {written}", file=sys.stderr if as_json else sys.stdout)


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Prints the tables of the page, then the answer, the legend and the notes."""
    from posembed.report.evaluation import paragraphs, tables
    from posembed.report.terminal import print_tables

    print_tables(console, tables(evaluation), paragraphs(evaluation))
