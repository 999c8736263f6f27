"""posembed report: writes the folder of a comparison as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by posembed compare.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: report.html in the folder.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The run that the others are compared with. Default: that of the last compare command."),
    ] = None,
) -> None:
    """Write the results of a folder as one self-contained HTML page."""
    from posembed.report.questions import write_report

    print(f"report: {write_report(folder, out, reference=reference)}")
