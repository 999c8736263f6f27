"""posembed report: a run folder -> one HTML page."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated

import typer

PAGES = {
    "lengths": "posembed.report.lengths.report",
    "inits": "posembed.report.inits.report",
    "cost": "posembed.report.cost.report",
    "algorithms": "posembed.report.algorithms.report",
    "text": "posembed.report.classification.report",
    "images": "posembed.report.images.report",
}
"""The question that the runs of a folder answer -> where its ``write_report`` is."""

WITH_REFERENCE = ("lengths", "inits", "text", "images")
"""The questions whose pages hold encodings against one of them."""


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as posembed compare makes them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page. Default: report.html in the folder.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The encoding that the others are held against. Default: the one usual for the question."),
    ] = None,
) -> None:
    """Write the runs of a folder as one self-contained HTML page."""
    from posembed.errors import ArgumentError, RunFolderError
    from posembed.lab.cost.results import FILE
    from posembed.lab.runs.results import read_settings

    question = "cost" if os.path.exists(folder / FILE) else read_settings(folder).get("question")
    if question not in PAGES:
        raise RunFolderError(f"{folder} holds runs of the question {question!r}, of which this version has no page")
    chosen = {} if reference is None else {"reference": reference}
    if chosen and question not in WITH_REFERENCE:
        raise ArgumentError(f"--reference is for {', '.join(WITH_REFERENCE)}; {folder} holds runs of {question}")
    write_report = importlib.import_module(PAGES[question]).write_report
    print(f"report: {write_report(folder, out, **chosen)}")
