"""posembed compare, with one command per question, built from its settings; and posembed report, which writes pages."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit

from posembed.cli.options import NOT_DIVIDED, Planning, Values, command, print_measured, shape_of
from posembed.lab.question import Question, TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.settings import Settings, argument, given_to, option

if TYPE_CHECKING:
    from posembed.comparison import Comparison, Prepared, PreparedCost
    from posembed.lab.runs.results import RunResult


def command_of(question: Question) -> click.RichCommand:
    """Returns the command for a question that a comparison answers."""

    def run(given: dict[str, Any]) -> None:
        from posembed.comparison import Prepared, prepare

        shape, dry_run = shape_of(given), given.pop("dry_run", False)
        prepared = prepare(question.name, given)
        if dry_run:
            planned = prepared.plan()
            if shape:
                print(json.dumps([each.to_dict() for each in planned]))
            else:
                from posembed.cli.console import plain_console
                from posembed.report.terminal import print_plan

                print_plan(plain_console(), planned, prepared.description)
            return
        comparison = with_bar(prepared)
        if isinstance(prepared, Prepared) and not prepared.accelerator.is_main_process:
            return
        if shape:
            print_measured(comparison, shape)
        else:
            print_comparison(comparison)
            out = comparison.path
            made = shlex.join(["posembed", "report", str(out)])
            print(f"posembed: the results are in {out}; {made} makes a page of them", file=sys.stderr)
        if comparison.results and all(result.failure for result in comparison.results):
            raise Exit(1)

    presets = question.presets_help is not None
    return command(
        question.name,
        run,
        *question.kinds,
        Planning,
        Values,
        help=question.asks,
        defaults={"out": f"runs/{question.name}", **question.shown_defaults},
        panels="{} (set by the preset)" if presets else "{}",
        several="" if isinstance(question, TrainedQuestion) else NOT_DIVIDED,
    )


def with_bar(prepared: Prepared | PreparedCost) -> Comparison:
    """Runs a comparison with a progress bar. After Ctrl-C, prints what the same command does then."""
    from posembed.cli.console import Bar, told_when_stopped
    from posembed.comparison import PreparedCost

    if isinstance(prepared, PreparedCost):
        if prepared.kept:
            print("posembed: measured earlier; name another --out to measure again", file=sys.stderr)
        with told_when_stopped(prepared.path, continues=False), Bar() as bar:
            return prepared.run(bar.update)
    quiet = not prepared.accelerator.is_main_process
    with told_when_stopped(prepared.folder.path), Bar(about=prepared.description, quiet=quiet) as bar:

        def finished(result: RunResult) -> None:
            told, style = f"training loss {result.losses[-1][1]:.3f} after {result.seconds:.0f} s", None
            if result.failure:
                told, style = f"failed: {result.failure}", "red"
            bar.console.print(f"{result.spec.name}: {told}", style=style)

        return prepared.run(bar.update, finished)


def print_comparison(comparison: Comparison) -> None:
    from posembed.cli.console import print_result

    print()
    print_result(comparison, "", comparison.tables(), [*comparison.answer(), *comparison.notes()])


@dataclass(frozen=True, kw_only=True)
class Folder(Settings):
    """A run folder and its page."""

    folder: Path = argument("A folder written by posembed compare.", "FOLDER")
    out: Path | None = option("The file to write. Default: report.html in the folder.", default=None)
    reference: str | None = option(
        "The run that the others are compared with. Default: the last command's reference.", default=None
    )


def run_report(given: dict[str, Any]) -> None:
    """Write the results of a folder as one self-contained HTML page."""
    from posembed.report.questions import write_report

    of = given_to(Folder, given)
    print(f"report: {write_report(of.folder, of.out, reference=of.reference)}")


report = command("report", run_report, Folder)
tasks = click.RichGroup(
    name="tasks",
    help="How much does an encoding help on problems, texts and images?",
    commands=[command_of(each) for each in QUESTIONS.values() if each.group],
    no_args_is_help=True,
)
app = click.RichGroup(
    name="compare",
    help="Compare position encodings by experiment, on your own data.",
    commands=[*(command_of(each) for each in QUESTIONS.values() if not each.group), tasks],
    no_args_is_help=True,
)
