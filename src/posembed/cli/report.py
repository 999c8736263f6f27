"""posembed report: writes a run folder as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as written by posembed compare.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: report.html in the folder.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The run that the others are compared with. Default: that of the last compare command."),
    ] = None,
) -> None:
    """Write the runs of a folder as one self-contained HTML page."""
    from posembed.lab.runs.results import OF_COST

    if os.path.exists(folder / OF_COST):
        from posembed.errors import ArgumentError
        from posembed.report.cost.report import write_report as write_cost_report

        if reference is not None:
            raise ArgumentError(f"--reference is for questions that compare with one; {folder} holds runs of cost")
        print(f"report: {write_cost_report(folder, out)}")
        return
    from posembed.report.questions import write_report

    print(f"report: {write_report(folder, out, reference=reference)}")
