"""posembed inspect: what the position tables of a checkpoint are, what they learned, and what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.checkpoints.inspect import CheckpointReport

CHECKPOINT = typer.Argument(help="A folder, a hub name, or a .safetensors, .bin or .pt file.", show_default=False)


def inspect(
    checkpoint: Annotated[str, CHECKPOINT],
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML page with figures to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show every position table of a checkpoint: what it is, what it learned, and what is wrong with it."""
    import json

    from posembed.checkpoints.inspect import inspect_checkpoint
    from posembed.cli.console import plain_console

    found = inspect_checkpoint(checkpoint)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_report(plain_console(soft_wrap=True), found)
    if report is not None:
        from posembed.report.checkpoint import write_checkpoint_page

        written = write_checkpoint_page(found, report)
        print(f"report: {written}", file=sys.stderr if as_json else sys.stdout)


def print_report(console: Console, report: CheckpointReport) -> None:
    """Prints what is wrong with each table before its figures."""
    from posembed.report.checkpoint import described, figures

    kind = f", {report.model_type}" if report.model_type else ""
    console.print(f"{report.source}{kind}: {report.parameters:,} parameters")
    if not report.tables:
        console.print(f"no position table was found: {report.why_none}")
    for each in report.tables:
        console.print()
        console.print(each.table.key, style="bold")
        for finding in each.findings:
            console.print(f"  ! {finding}", style="yellow")
        if each.table.doubt:
            console.print(f"  ? {each.table.doubt}", style="yellow")
        for name, value in (*described(each), *figures(each.learned)):
            console.print(f"  {name:<20}{value}")
