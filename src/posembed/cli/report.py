"""posembed report: a run folder -> one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as posembed compare makes them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page. Default: report.html in the folder.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The encoding that the others are held against. Default: alibi, if it was run."),
    ] = None,
) -> None:
    """Write the runs of a folder as one self-contained HTML page."""
    from posembed.lab.cost.results import FILE
    from posembed.report.cost import write_cost_report
    from posembed.report.lengths import write_report

    if (folder / FILE).exists():
        page = write_cost_report(folder, out)
    else:
        page = write_report(folder, out, reference=reference)
    print(f"report: {page}")
