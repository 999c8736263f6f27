"""The command of one question: its options, the runs with a progress bar, the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from posembed.cli.options import parameter, parameters_of, with_parameters
from posembed.lab.question import Conduct, Question

if TYPE_CHECKING:
    from posembed.comparison import Comparison


def command_of(question: Question[Any, Any, Any]) -> Callable[..., None]:
    """Returns the command of a question, with options made from its settings."""
    has_presets = question.presets_help is not None
    panels = "{} (set by the preset)" if has_presets else "{}"
    usual = ",".join(question.usual)
    parameters = [
        parameter(question.compared, list[str], question.names_help, shown=usual),
        *([parameter("preset", str, question.presets_help or "", shown=question.preset)] if has_presets else []),
        *parameters_of(question.ReadingType, defaults={"reference": question.usual_reference}),
        *parameters_of(Conduct, defaults={"out": f"runs/{question.name}"}),
        parameter("dry_run", bool, "Print the runs, their sizes and the time, and train nothing.", default=False),
        parameter("json", bool, "Print the summary as JSON.", default=False),
        *parameters_of(question.Spec, defaults=question.presets[question.preset], panels=panels),
    ]

    def command(**chosen: Any) -> None:
        dry_run, as_json = chosen.pop("dry_run"), chosen.pop("json")
        answer_question(question, chosen, dry_run=bool(dry_run), as_json=bool(as_json))

    return with_parameters(command, parameters)


def answer_question(question: Question[Any, Any, Any], chosen: dict[str, Any], *, dry_run: bool, as_json: bool) -> None:
    """Trains what is missing from the folder and prints the answer."""
    from posembed.cli.compare.plan import print_plan
    from posembed.cli.compare.progress import ProgressBar
    from posembed.comparison import prepare

    prepared = prepare(question.name, chosen)
    if dry_run:
        print_plan(prepared.plan(), prepared.task.description)
        return
    accelerator, out = prepared.accelerator, prepared.folder.path
    try:
        with ProgressBar(prepared.specs, about=prepared.task.description, quiet=not accelerator.is_main_process) as bar:
            comparison = prepared.run(bar)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command continues from {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not accelerator.is_main_process:
        return
    if as_json:
        print(json.dumps(comparison.to_dict()))
    else:
        print_comparison(comparison)
        print(f"posembed: the runs are in {out}; posembed report {out} makes a page of them", file=sys.stderr)
    if all(result.failure for result in comparison.results):
        raise typer.Exit(1)


def print_comparison(comparison: Comparison) -> None:
    """Prints the main table, the answer, and what is needed to read them."""
    from rich.text import Text

    from posembed.cli.console import table_console
    from posembed.report.terminal import print_tables

    console = table_console()
    console.print()
    print_tables(console, [comparison.table()])
    for paragraph in (*comparison.answer(), *comparison.notes()):
        console.print(Text(paragraph))
