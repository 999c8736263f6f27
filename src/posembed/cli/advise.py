"""posembed advise: recommends a position encoding, based on your needs and on measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from posembed.cli.options import AS_JSON, parameter, parameters_of, sides, with_parameters
from posembed.lab.advice.needs import Needs
from posembed.lab.runs.spec import options

if TYPE_CHECKING:
    from posembed.lab.advice.advise import Advice
    from posembed.report.page import Column, Table
    from posembed.statistics import Estimate


def advise(*, table: int | None, runs: Path | None, as_json: bool, **given: Any) -> None:
    """Recommend one encoding for your needs, with reasons. Asks questions when no options are given."""
    from posembed.lab.advice.advise import advise as advice_for

    if given["length"] is None and given["grid"] is None and _someone_is_there():
        _ask(given, table)
    for name in ("grid", "longest_grid"):
        if given[name] is not None:
            given[name] = sides(given[name], f"--{name.replace('_', '-')}", square=False)
    advice = advice_for(runs=runs, table=table, **given)
    if as_json:
        print(json.dumps(advice.to_dict(), indent=2))
    else:
        print_advice(advice)


with_parameters(
    advise,
    [
        *parameters_of(Needs, kinds={"longest": str, "checkpoint": str}),
        parameter("table", int, "The number of positions of a learned table, in place of --checkpoint."),
        parameter("runs", Path, "A run folder of posembed compare lengths, used as evidence."),
        AS_JSON,
    ],
)


def print_advice(advice: Advice) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from posembed.cli.console import plain_console, table_console
    from posembed.report.terminal import print_tables

    console = plain_console()
    console.print(Text(f"{advice.recommendation}: {advice.title}", style="bold green"))
    for heading, lines in advice.sections().items():
        console.print()
        console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    console.print()
    print_tables(table_console(), [table_of_options(advice)])


def table_of_options(advice: Advice) -> Table:
    """Returns a table of every option with what was measured: the values at the needed and at the training length."""
    from posembed.report.page import Cell, table_of

    def cell(value: Estimate | None) -> str:
        return "" if value is None else f"{value.value:.2f}" if advice.measure == "perplexity" else f"{value.value:.1f}"

    trained, needed = advice.measured_at
    columns: list[Column] = [(f"at {needed:,}", lambda option: cell(option.needed))] if advice.measure else []
    if not advice.measure:
        columns.append((Cell("what it is", kind="words"), lambda option: option.title))
    elif needed != trained:
        columns.append((Cell(f"at {trained:,}", note="trained"), lambda option: cell(option.trained)))
    if any(option.found for option in advice.options):
        columns.append((Cell("passkeys", note="found, %"), lambda o: "" if o.found is None else f"{o.found.value:.0f}"))
    return table_of(
        advice.options,
        f"Every option, the best first: {advice.measure}" if advice.measure else "What can be done with the checkpoint",
        "",
        *columns,
        ("parameters", lambda option: f"{option.parameters:,}"),
        (Cell("why not", kind="words"), lambda option: option.cannot or ""),
        first="option",
    )


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _ask(given: dict[str, Any], table: int | None) -> None:
    """Asks for the needs that were not given as options, using the help texts of the options."""
    grid = typer.confirm("Are the positions a grid, as in images?", default=False)
    names = ["grid", "longest_grid"] if grid else ["length", "longest", "vocabulary"]
    for name in [*names, "width", "checkpoint"]:
        if given[name] is None and not (name == "checkpoint" and table is not None):
            field = options(Needs)[name]
            usual = {"length": None, "longest": str(given["length"]), "longest_grid": given["grid"], "checkpoint": ""}
            default, asked = usual.get(name, field.default), field.metadata["help"].rstrip(".")
            kind = int if field.type == "int" else str
            answer = typer.prompt(asked, type=kind, default=default, show_default=default != "")
            given[name] = None if answer == "" else answer
    if not grid and given["encoder"] is None:
        given["encoder"] = typer.confirm("Does the model read in both directions, like BERT?", default=False)
    if not grid and given["far"] is None:
        given["far"] = typer.confirm("Must the model retrieve tokens from far back?", default=False)
