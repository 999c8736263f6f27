"""The command of one question: its options, the runs with a progress bar, the answer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from posembed.cli.options import parameter, parameters_of, with_parameters
from posembed.lab.question import Conduct, Question, TrainedQuestion
from posembed.lab.questions.cost import Cost

if TYPE_CHECKING:
    from posembed.comparison import Comparison, Prepared, PreparedCost
    from posembed.lab.runs.sweep import PlannedRun

AS_JSON = parameter("json", bool, "Print the summary as JSON.", default=False)


def command_of(question: Question) -> Callable[..., None]:
    """Returns the command of a question, with options made from its settings."""

    def command(**chosen: Any) -> None:
        flags = {name: bool(chosen.pop(name, False)) for name in ("dry_run", "json")}
        answer_question(question, chosen, **flags)

    if isinstance(question, TrainedQuestion):
        return with_parameters(command, trained_parameters(question))
    assert isinstance(question, Cost)
    out = parameter("out", Path, "The folder for cost.json, which posembed report reads.", shown="runs/cost")
    return with_parameters(command, [*parameters_of(question.Settings), out, AS_JSON])


def trained_parameters(question: TrainedQuestion[Any, Any, Any]) -> list[inspect.Parameter]:
    has_presets = question.presets_help is not None
    return [
        parameter(question.compared, tuple[str, ...], question.names_help, shown=",".join(question.usual)),
        *([parameter("preset", str, question.presets_help or "", shown=question.preset)] if has_presets else []),
        *parameters_of(question.ReadingType, defaults={"reference": question.usual_reference}),
        *parameters_of(Conduct, defaults={"out": f"runs/{question.name}"}),
        parameter("dry_run", bool, "Print the runs, their sizes and the time, and train nothing.", default=False),
        AS_JSON,
        *parameters_of(
            question.Spec,
            defaults=question.presets[question.preset],
            panels="{} (set by the preset)" if has_presets else "{}",
        ),
    ]


def answer_question(question: Question, chosen: dict[str, Any], *, dry_run: bool, json: bool) -> None:
    """Runs what is missing from the folder and prints the answer."""
    from posembed.comparison import Prepared, prepare

    prepared = prepare(question.name, chosen)
    if dry_run and isinstance(prepared, Prepared):
        print_plan(prepared.plan(), prepared.task.description)
        return
    comparison = with_bar(prepared)
    if isinstance(prepared, Prepared) and not prepared.accelerator.is_main_process:
        return
    if json:
        print(dumps(comparison.to_dict()))
    else:
        print_comparison(comparison)
        out = comparison.path
        print(f"posembed: the results are in {out}; posembed report {out} makes a page of them", file=sys.stderr)
    if comparison.results and all(result.failure for result in comparison.results):
        raise typer.Exit(1)


def print_plan(runs: Sequence[PlannedRun], description: str) -> None:
    """Prints the runs, their sizes and their time."""
    from rich.table import Column, Table

    from posembed.cli.console import plain_console

    console = plain_console()
    console.print(description + "\n")
    table = Table("run", *(Column(name, justify="right") for name in ("parameters", "of positions", "steps", "time")))
    for run in runs:
        numbers = f"{run.parameters:,}", f"{run.position_parameters:,}", f"{run.spec.steps:,}"
        table.add_row(run.spec.name, *numbers, duration(run.seconds))
    console.print(table)
    console.print(f"about {duration(sum(run.seconds for run in runs))} in total on this machine; nothing was trained")


def duration(seconds: float) -> str:
    """Formats a time for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def with_bar(prepared: Prepared | PreparedCost) -> Comparison:
    """Runs with a progress bar. Ctrl-C ends the command; the same command continues."""
    from posembed.cli.compare.progress import ProgressBar
    from posembed.cli.console import Bar
    from posembed.comparison import PreparedCost

    if isinstance(prepared, PreparedCost):
        with Bar() as bar:
            return prepared.run(bar.update)
    quiet = not prepared.accelerator.is_main_process
    try:
        with ProgressBar(prepared.specs, about=prepared.task.description, quiet=quiet) as watcher:
            return prepared.run(watcher)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command continues from {prepared.folder.path}", file=sys.stderr)
        raise typer.Exit(130) from None


def print_comparison(comparison: Comparison) -> None:
    """Prints the main tables, the answer, and what is needed to read them."""
    from posembed.cli.console import table_console
    from posembed.report.terminal import print_tables

    console = table_console()
    console.print()
    print_tables(console, comparison.tables(), [*comparison.answer(), *comparison.notes()])
