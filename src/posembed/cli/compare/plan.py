"""The output of --dry-run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table

from posembed.cli.console import plain_console
from posembed.lab.runs.plan import PlannedRun


def print_plan(runs: Sequence[PlannedRun], description: str) -> None:
    """Prints the runs, their sizes and their time."""
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
