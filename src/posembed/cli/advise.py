"""posembed advise: recommends a position encoding, based on your needs and on measurements."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from posembed.cli.options import Printing, command
from posembed.lab.advice.needs import Needs
from posembed.settings import Count, Settings, option, options

if TYPE_CHECKING:
    from posembed.lab.advice.advise import Advice
    from posembed.report.page import Column, Table
    from posembed.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Evidence(Settings):
    """What the advice is based on, besides the needs."""

    table: Count | None = option("The number of positions of a learned table, in place of --checkpoint.", default=None)
    runs: Path | None = option("A run folder of posembed compare lengths, used as evidence.", default=None)


def run(given: dict[str, Any]) -> None:
    """Recommend one encoding for your needs, with reasons. Asks questions when no options are given."""
    from posembed.lab.advice.advise import advise as advice_for

    as_json = given.pop("json", False)
    if not given.keys() & {"length", "grid"} and sys.stdin.isatty():
        _ask(given)
    advice = advice_for(**given)
    if as_json:
        print(json.dumps(advice.to_dict(), indent=2))
    else:
        print_advice(advice)


advise = command("advise", run, Needs, Evidence, Printing, defaults={"longest": "the length"})


def print_advice(advice: Advice) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from posembed.cli.console import plain_console
    from posembed.report.terminal import print_tables

    console = plain_console()
    console.print(Text(f"{advice.recommendation}: {advice.title}", style="bold green"))
    for heading, lines in advice.sections().items():
        console.print()
        console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    console.print()
    print_tables(console, [table_of_options(advice)])


def table_of_options(advice: Advice) -> Table:
    """Returns a table of all options with what was measured for each, at the needed and at the training length."""
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
        f"Every option, the recommended one first, then the best: {advice.measure}"
        if advice.measure
        else "What can be done with the checkpoint",
        "",
        *columns,
        ("parameters", lambda option: f"{option.parameters:,}"),
        (Cell("why not", kind="words"), lambda option: option.cannot or ""),
        first="option",
    )


def _ask(given: dict[str, Any]) -> None:
    """Asks for the needs that were not given as options, using the help texts of the options."""
    grid = click.confirm("Are the positions a grid, as in images?", default=False)
    names = ["grid", "longest_grid"] if grid else ["length", "longest", "vocabulary"]
    for name in [*names, "width", *(["checkpoint"] if "table" not in given else [])]:
        if name not in given:
            field = options(Needs)[name]
            usual = {
                "length": None,
                "longest": given.get("length"),
                "longest_grid": given.get("grid"),
                "checkpoint": "",
            }
            default, asked = usual.get(name, field.default), field.metadata["help"].rstrip(".")
            answer = click.prompt(asked, type=str, default=default, show_default=default != "")
            if answer != "":
                given[name] = answer
    asked = {"encoder": "Does the model read in both directions, like BERT?"}
    asked["far"] = "Must the model retrieve tokens from far back?"
    for name, question in asked.items():
        if not grid and name not in given:
            given[name] = click.confirm(question, default=False)
