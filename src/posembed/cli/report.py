"""posembed report: a run folder -> one HTML page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

WRITERS = {
    "inits": "posembed.report.inits",
    "lengths": "posembed.report.lengths",
}
"""The module whose write_report makes the page of a question."""


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as posembed compare makes them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page. Default: report.html in the folder.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="What the others are held against. Default: the question's own, if it was run."),
    ] = None,
) -> None:
    """Write the runs of a folder as one self-contained HTML page."""
    from posembed.lab.results import read_settings

    question = read_settings(folder)["question"]
    page = import_module(WRITERS[question]).write_report(folder, out, reference=reference)
    print(f"report: {page}")
