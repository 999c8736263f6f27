"""posembed advise: which position encoding to use, from your needs and from measurements."""

from __future__ import annotations

import math
import re
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from posembed.cli.options import parameter, with_parameters
from posembed.errors import ArgumentError
from posembed.lab.advice.needs import Existing, Grid, Needs
from posembed.lab.runs.spec import options

if TYPE_CHECKING:
    from posembed.lab.advice.advise import Advice


def advise(*, table: int | None, runs: Path | None, json: bool, **given: Any) -> None:
    """Recommend one encoding for your needs, with reasons. Asks questions when no options are given."""
    from posembed.lab.advice.advise import advise as advice_for

    if given["length"] is None and given["grid"] is None and _someone_is_there():
        _ask(given, table)
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen |= {name: _grid(chosen[name], name) for name in ("grid", "longest_grid") if name in chosen}
    if "longest" in chosen:
        chosen["longest"] = _length(chosen["longest"])
    chosen["checkpoint"] = _existing(given["checkpoint"], table, chosen.get("grid"))
    advice = advice_for(runs=runs, **chosen)
    if json:
        print(dumps(advice.to_dict(), indent=2))
    else:
        print_advice(advice)


KINDS = {"int": int, "bool": bool}
"""Needs of other types are texts, which this file parses: lengths with "none", grids, checkpoints."""

with_parameters(
    advise,
    [
        *(
            parameter(
                name,
                KINDS.get(str(field.type), str),
                field.metadata["help"],
                with_no=field.type == "bool",
                shown=str(field.default) if field.type == "int" and name != "length" else None,
            )
            for name, field in options(Needs).items()
        ),
        parameter("table", int, "Instead of a checkpoint: how many positions its learned table has."),
        parameter("runs", Path, "A run folder of posembed compare lengths to rest on."),
        parameter("json", bool, "Print JSON instead of text.", default=False),
    ],
)


def print_advice(advice: Advice) -> None:
    """Prints the recommendation first, then what it rests on."""
    from rich.padding import Padding
    from rich.text import Text

    from posembed.cli.console import plain_console

    console = plain_console()
    console.print(Text(f"{advice.recommendation}: {advice.title}", style="bold green"))
    for heading, lines in advice.sections().items():
        console.print()
        console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _ask(given: dict[str, Any], table: int | None) -> None:
    """Asks for the needs that were not given as options."""

    def ask(name: str, question: str, *, of: type = str, **options: Any) -> None:
        if given[name] is None:
            given[name] = typer.prompt(question, type=of, **options)

    if typer.confirm("Are the positions a grid, as in images?", default=False):
        ask("grid", "Patches in training, HEIGHTxWIDTH")
        ask("longest_grid", "The most patches you will ever need", default=given["grid"])
    else:
        ask("length", "Tokens per training sequence", of=int)
        ask("longest", "The most tokens you will ever need (none: no limit)", default=str(given["length"]))
    ask("width", "Width of the model", of=int, default=768)
    if given["grid"] is None:
        ask("vocabulary", "Vocabulary", of=int, default=50_257)
    ask("heads", "Attention heads", of=int, default=12)
    if table is None:
        ask("checkpoint", "An existing checkpoint (Enter for none)", default="", show_default=False)
    if given["grid"] is None and given["far"] is None:
        given["far"] = typer.confirm("Must the model retrieve tokens from far back?", default=False)


def _length(text: str) -> int | Literal["none"]:
    if text.lower() == "none":
        return "none"
    if re.fullmatch(r"\d{1,12}", text) is None:
        raise ArgumentError(f"--longest: expected a number of tokens, or none for no limit; got {text!r}")
    return int(text)


def _grid(text: str, name: str) -> Grid:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if match is None:
        raise ArgumentError(
            f"--{name.replace('_', '-')}: expected HEIGHTxWIDTH in patches, such as 14x14; got {text!r}"
        )
    return int(match[1]), int(match[2])


def _existing(checkpoint: str | None, table: int | None, grid: Grid | None) -> Existing | None:
    if table is not None:
        if checkpoint:
            raise ArgumentError("give --checkpoint or --table, not both: posembed reads the length from a checkpoint")
        if table < 1:
            raise ArgumentError(f"--table counts positions and is at least 1; got {table}")
        return Existing(table, grid if grid is not None and math.prod(grid) == table else None)
    if not checkpoint:
        return None
    from posembed.checkpoints.found import PositionTable
    from posembed.checkpoints.inspect import inspect_checkpoint

    for report in inspect_checkpoint(checkpoint).tables:
        if isinstance(report.table, PositionTable) and report.table.kind == "learned":
            findings = tuple(map(str, report.findings))
            return Existing(report.table.length, report.table.layout.grid, checkpoint, findings)
    return Existing(None, source=checkpoint)
