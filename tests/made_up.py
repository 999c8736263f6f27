"""The made-up results of every question that trains models, by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up_amounts
import made_up_by_task
import made_up_classes
import made_up_inits
import made_up_problems
import made_up_rows
import made_up_runs
from posembed.lab.runs.results import RunFolder, RunResult

MADE: dict[str, Callable[[int], list[RunResult]]] = {
    "lengths": made_up_runs.runs,
    "inits": made_up_inits.typical,
    "sharing": made_up_problems.sharing_runs,
    "by-task": made_up_by_task.by_task_runs,
    "rows": made_up_rows.row_runs,
    "data-efficiency": made_up_amounts.data_runs,
    "dropout": made_up_amounts.dropout_runs,
    "addition": made_up_problems.runs,
    "text": made_up_classes.text_runs,
    "tags": made_up_classes.tag_runs,
    "spans": made_up_classes.span_runs,
    "images": made_up_classes.image_runs,
}
"""Each with so many seeds."""
SAVE = {"inits": made_up_inits.save_inits, "by-task": made_up_by_task.save_by_task}
"""How a run folder with tables of a question's own is made."""


def saved(name: str, folder: Path, results: list[RunResult]) -> RunFolder[Any]:
    return SAVE.get(name, made_up_runs.save)(folder, results)
