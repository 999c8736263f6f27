"""posembed evaluate: quality by text length, for several checkpoints on the same texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posembed.cli.options import PATH, AsJson
from posembed.lab.runs.spec import as_type

if TYPE_CHECKING:
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
        str, typer.Option(help="Lengths in tokens, separated by commas.", metavar="N,N,...")
    ] = "256,512,1024,2048",
    texts: Annotated[int, typer.Option(help="Maximum number of texts; the first that are long enough.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Draws the masked tokens of masked language models.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Where the models run. Default: an accelerator if there is one.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Keeps every count; what it holds is not measured again.", **PATH)
    ] = Path("runs/evaluations.jsonl"),
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML page with a figure.", show_default=False, **PATH)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models at several text lengths, compared with truncating and chunking at the original length."""
    from posembed.cli.console import Bar
    from posembed.evaluation.api import evaluate_checkpoints

    if report is not None:
        from posembed.report.page import refuse_page

        refuse_page(report, option="--report")
    with Bar() as bar:
        evaluation = evaluate_checkpoints(
            checkpoints,
            text,
            lengths=as_type("lengths", lengths, tuple[int, ...]),
            texts=texts,
            seed=seed,
            device=device,
            results=results,
            progress=bar.update,
        )
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        print_evaluation(evaluation)
    if report is not None:
        from posembed.report.evaluation.report import write_evaluation_page

        print(f"report: {write_evaluation_page(evaluation, report)}", file=sys.stderr if as_json else sys.stdout)


def print_evaluation(evaluation: Evaluation) -> None:
    """Prints the tables of the page, then the answer, the legend and the notes."""
    from posembed.cli.console import table_console
    from posembed.report.evaluation.tables import paragraphs, tables
    from posembed.report.terminal import print_tables

    print_tables(table_console(), tables(evaluation), paragraphs(evaluation))
