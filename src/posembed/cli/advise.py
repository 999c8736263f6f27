"""posembed advise: which position encoding to use, from what is needed and what was measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posembed.errors import ArgumentError

if TYPE_CHECKING:
    from posembed.lab.advice.advise import Advice
    from posembed.lab.advice.needs import Grid, Held

NO_LIMIT = "none"


def advise(
    length: Annotated[int | None, typer.Option(help="Tokens of a training sequence.", show_default=False)] = None,
    longest: Annotated[
        str | None, typer.Option(help="The most tokens ever needed; none for no limit. Default: the length.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model. Default: 768.")] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Tokens of the vocabulary. Default: 50257; images have none.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads. Default: 12.")] = None,
    grid: Annotated[
        str | None, typer.Option(help="Images: the patches trained on, HEIGHTxWIDTH.", metavar="HxW")
    ] = None,
    longest_grid: Annotated[
        str | None, typer.Option(help="Images: the most patches ever. Default: the grid.", metavar="HxW")
    ] = None,
    far: Annotated[
        bool | None, typer.Option("--far/--no-far", help="Must tokens be fetched from far back? Default: no.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A checkpoint that is there: a folder, a hub name or a file; inspected.")
    ] = None,
    table: Annotated[
        int | None, typer.Option(help="Instead of a checkpoint: how many positions its learned table has.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="A run folder of posembed compare lengths to rest on.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Ask what is needed, or take it as options, and recommend one encoding with its reasons."""
    import dataclasses
    import json

    from posembed.lab.advice.advise import advise as advice_for
    from posembed.lab.advice.evidence import committed_studies, study_of_folder
    from posembed.lab.advice.needs import Needs

    studies = [study_of_folder(runs)] if runs is not None else []
    studies += committed_studies()
    places = _grid(grid, "--grid") if grid is not None else None
    if _someone_is_there() and length is None and places is None:
        length, longest, places, longest_grid = _ask_for_lengths(longest, longest_grid)
        width = width or typer.prompt("Width of the model", default=768, type=int)
        if vocabulary is None and places is None:
            vocabulary = typer.prompt("Vocabulary", default=50_257, type=int)
        heads = heads or typer.prompt("Attention heads", default=12, type=int)
        if checkpoint is None and table is None:
            checkpoint = typer.prompt("A checkpoint that is there (Enter for none)", default="", show_default=False)
        if far is None and places is None:
            far = typer.confirm("Must tokens be fetched from far back?", default=False)
    if length is None and places is None:
        raise ArgumentError("give --length, the tokens of a training sequence, or --grid for images")
    length = length if length is not None else _product(places)
    largest = _grid(longest_grid, "--longest-grid") if longest_grid is not None else None
    needs = Needs(
        train_length=length,
        longest=_longest(longest, length if places is None else _product(largest or places)),
        width=768 if width is None else width,
        vocabulary=vocabulary if vocabulary is not None else 50_257 if places is None else 0,
        heads=12 if heads is None else heads,
        grid=places,
        longest_grid=largest,
        fetch_far=bool(far),
        checkpoint=_held(checkpoint or None, table, places),
    )
    advice = advice_for(needs, studies)
    if as_json:
        print(json.dumps({"needs": dataclasses.asdict(needs), **dataclasses.asdict(advice)}, indent=2))
    else:
        print_advice(advice)


def print_advice(advice: Advice) -> None:
    """The answer first, then what it rests on."""
    from rich.padding import Padding
    from rich.text import Text

    from posembed.cli.console import plain_console

    console = plain_console()

    def listed(title: str, lines: list[str]) -> None:
        if lines:
            console.print()
            console.print(Text(title, style="bold"))
            for line in lines:
                console.print(Padding(Text(line), (0, 0, 0, 2)))

    console.print(Text(f"{advice.recommendation}: {advice.title}", style="bold green"))
    listed("Why", list(advice.reasons))
    options = []
    for option in advice.options:
        share = f", {option.share:.2%} of the embeddings" if option.share else ""
        verdict = "" if option.cannot is None else f"; no: {option.cannot}"
        options.append(f"{option.name}: {option.parameters:,}{share}{verdict}")
    listed("Parameters of each, and why not", options)
    listed("Mind", list(advice.caveats))
    for study in advice.figures:
        listed(f"Measured: {study.title} ({study.source})", list(study.lines))


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _ask_for_lengths(
    longest: str | None, longest_grid: str | None
) -> tuple[int | None, str | None, Grid | None, str | None]:
    """(length, longest, grid, longest grid) of a sequence or of a grid."""
    if typer.confirm("Are positions a grid, as of images?", default=False):
        places = _grid(typer.prompt("Patches trained on, HEIGHTxWIDTH"), "the grid")
        longest_grid = longest_grid or typer.prompt("The most patches ever", default=f"{places[0]}x{places[1]}")
        return None, longest, places, longest_grid
    length = typer.prompt("Tokens of a training sequence", type=int)
    longest = longest or typer.prompt("The most tokens ever needed (none: no limit)", default=str(length))
    return length, longest, None, longest_grid


def _longest(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    if text.lower() == NO_LIMIT:
        return None
    if re.fullmatch(r"\d{1,12}", text) is None:
        raise ArgumentError(f"--longest: expected a number of tokens, or none for no limit; got {text!r}")
    return int(text)


def _grid(text: str, option: str) -> Grid:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if match is None:
        raise ArgumentError(f"{option}: expected HEIGHTxWIDTH in patches, such as 14x14; got {text!r}")
    return int(match[1]), int(match[2])


def _product(grid: Grid | None) -> int:
    assert grid is not None
    return grid[0] * grid[1]


def _held(checkpoint: str | None, table: int | None, grid: Grid | None) -> Held | None:
    from posembed.lab.advice.needs import Held

    if table is not None:
        if checkpoint is not None:
            raise ArgumentError("give --checkpoint or --table, not both: an inspection tells the table's length")
        if table < 1:
            raise ArgumentError(f"--table counts positions and is at least 1; got {table}")
        return Held(table, grid if grid is not None and _product(grid) == table else None)
    if checkpoint is None:
        return None
    from posembed.checkpoints.found import PositionTable
    from posembed.checkpoints.inspect import inspect_checkpoint

    for report in inspect_checkpoint(checkpoint).tables:
        if isinstance(report.table, PositionTable) and report.table.kind == "learned":
            return Held(report.table.length, report.table.layout.grid, checkpoint, tuple(map(str, report.findings)))
    return Held(None, source=checkpoint)
