"""posembed compare, with one command per question, built from its settings; and posembed report, which writes pages."""

from __future__ import annotations

import inspect
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posembed.cli.options import AS_JSON, PATH, parameter, parameters_of, with_parameters
from posembed.lab.question import Conduct, Question, TrainedQuestion
from posembed.lab.questions import QUESTIONS, Cost

if TYPE_CHECKING:
    from posembed.comparison import Comparison, Prepared, PreparedCost
    from posembed.lab.cost.plan import PlannedCost
    from posembed.lab.runs.sweep import PlannedRun

app = typer.Typer(no_args_is_help=True, help="Compare position encodings by experiment, on your own data.")
tasks = typer.Typer(no_args_is_help=True, help="How much does an encoding help on problems, texts and images?")


DRY_RUN = parameter("dry_run", bool, "Print what would run, its sizes and estimated time, and stop.", default=False)


def preset_of(question: Question) -> inspect.Parameter:
    return parameter("preset", str, question.presets_help or "", shown=question.preset)


def command_of(question: Question) -> Callable[..., None]:
    def command(*, dry_run: bool = False, as_json: bool, **chosen: Any) -> None:
        from posembed.comparison import Prepared, PreparedCost, prepare

        prepared = prepare(question.name, chosen)
        if dry_run:
            planned = prepared.plan()
            if as_json:
                print(json.dumps([each.to_dict() for each in planned]))
            else:
                print_plan(planned, prepared.description, measured=isinstance(prepared, PreparedCost))
            return
        comparison = with_bar(prepared)
        if isinstance(prepared, Prepared) and not prepared.accelerator.is_main_process:
            return
        if as_json:
            print(json.dumps(comparison.to_dict()))
        else:
            print_comparison(comparison)
            out = comparison.path
            made = shlex.join(["posembed", "report", str(out)])
            print(f"posembed: the results are in {out}; {made} makes a page of them", file=sys.stderr)
        if comparison.results and all(result.failure for result in comparison.results):
            raise typer.Exit(1)

    if isinstance(question, TrainedQuestion):
        parameters = trained_parameters(question)
    else:
        out = parameter("out", Path, "The folder for cost.json, which posembed report reads.", shown="runs/cost")
        encodings, *sizes = parameters_of(Cost.Settings)
        parameters = [encodings, preset_of(question), out, DRY_RUN, *sizes]
    return with_parameters(command, [*parameters, AS_JSON])


def trained_parameters(question: TrainedQuestion[Any, Any, Any]) -> list[inspect.Parameter]:
    has_presets = question.presets_help is not None
    panels = "{} (set by the preset)" if has_presets else "{}"
    defaults = question.presets[question.preset]
    varied = [] if question.varied is None else [(question.varied, question.varied_help, defaults[question.varied])]
    listed = [(question.compared, question.names_help, question.usual), *varied]
    return [
        *(parameter(name, tuple[str, ...], help, shown=",".join(values)) for name, help, values in listed),
        *([preset_of(question)] if has_presets else []),
        *parameters_of(question.ReadingType, defaults={"reference": question.usual_reference}),
        *parameters_of(Conduct, defaults={"out": f"runs/{question.name}", "seeds": question.usual_seeds}),
        DRY_RUN,
        *parameters_of(question.Spec, defaults=defaults, panels=panels),
    ]


def print_plan(planned: Sequence[PlannedRun] | Sequence[PlannedCost], description: str, *, measured: bool) -> None:
    """Prints what would run and how long it takes. ``measured``: whether encodings are measured, not trained."""
    from posembed.cli.console import table_console
    from posembed.report.page import Column, table_of
    from posembed.report.terminal import print_tables
    from posembed.report.words import duration

    of_runs: tuple[Column, ...] = (
        ("of positions", lambda run: f"{run.position_parameters:,}"),
        ("steps", lambda run: f"{run.spec.steps:,}"),
    )
    table = table_of(
        planned,
        description,
        "",
        ("parameters", lambda each: f"{each.parameters:,}"),
        *(() if measured else of_runs),
        ("time", lambda each: duration(each.seconds)),
        first="encoding" if measured else "run",
    )
    total = duration(math.fsum(each.seconds for each in planned))
    done = "measured" if measured else "trained"
    print_tables(table_console(), [table], [f"About {total} in total on this machine; nothing was {done}."])


def with_bar(prepared: Prepared | PreparedCost) -> Comparison:
    """Runs a comparison with a progress bar. After Ctrl-C, prints that the same command continues it."""
    from posembed.cli.console import Bar, RunsBar
    from posembed.comparison import PreparedCost

    if isinstance(prepared, PreparedCost):
        with Bar() as bar:
            return prepared.run(bar.update)
    quiet = not prepared.accelerator.is_main_process
    try:
        with RunsBar(prepared.specs, about=prepared.description, quiet=quiet) as watcher:
            return prepared.run(watcher)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command continues from {prepared.folder.path}", file=sys.stderr)
        raise typer.Exit(130) from None


def print_comparison(comparison: Comparison) -> None:
    from posembed.cli.console import table_console
    from posembed.report.terminal import print_tables

    console = table_console()
    console.print()
    print_tables(console, comparison.tables(), [*comparison.answer(), *comparison.notes()])


for each in QUESTIONS.values():
    (tasks if each.group else app).command(each.name, help=each.asks)(command_of(each))
app.add_typer(tasks, name="tasks")


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by posembed compare.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: report.html in the folder.", **PATH)
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The run that the others are compared with. Default: the last command's reference."),
    ] = None,
) -> None:
    """Write the results of a folder as one self-contained HTML page."""
    from posembed.report.questions import write_report

    print(f"report: {write_report(folder, out, reference=reference)}")
