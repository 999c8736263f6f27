"""Pictures of what the learned tables of a run folder became."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import load_tables
from posembed.report.learned.along_training import (
    Tables,
    measures_along_figure,
    table_along_figure,
    untrained_rows,
)
from posembed.report.learned.pictures import table_figure
from posembed.report.page import Picture, picture

HOW_TO_READ = (
    "Blue is negative, white zero, red positive. Stripes along the diagonal of the cosines mean that nearby rows are "
    "alike."
)


def first_kept(
    runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]], kind: str
) -> dict[str, tuple[RunResult[Any, Any], Path]]:
    """Returns, by name, the first successful run whose file exists, with that file."""
    found: dict[str, tuple[RunResult[Any, Any], Path]] = {}
    for result in sorted(results, key=lambda result: result.spec.seed):
        file = runs.file(kind, result.spec)
        if result.failure is None and file.exists():
            found.setdefault(result.spec.compared, (result, file))
    return found


def tables_of(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> dict[str, tuple[int, Tables]]:
    """Returns (seed, tables) of the first successful run of each name that kept its rows."""
    kept = first_kept(runs, results, "tables")
    names = dict.fromkeys(result.spec.compared for result in results)
    found = [(name, *kept[name]) for name in names if name in kept]
    return {name: (run.spec.seed, load_tables(file)) for name, run, file in found}


def table_pictures(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterator[Picture]:
    """Yields each table before and after training, and along it; then all of them in numbers."""
    tables_by_name = tables_of(runs, results)
    for name, (seed, tables) in tables_by_name.items():
        first, *_, last = tables.values()
        yield picture(
            table_figure(first, last),
            name=name,
            described=f"The table of {name} at initialisation and after training: values, cosines of its rows, norms.",
            title=f"{name}, seed {seed}: {len(last):,} rows of {last.size(1):,}",
            caption=HOW_TO_READ,
        )
        yield picture(
            table_along_figure(tables),
            name=f"{name}-along",
            described=f"The table of {name} during training: cosines of its rows, norms, spectrum.",
            title=f"{name}, during training",
            caption=f"Darker lines are later. {which_were_trained(tables)}",
        )
    if tables_by_name:
        yield measures_picture({name: tables for name, (_, tables) in tables_by_name.items()})


def measures_picture(tables_by_name: dict[str, Tables]) -> Picture:
    return picture(
        measures_along_figure(tables_by_name),
        name="tables-along",
        described="Norms, neighbour cosine and effective rank of the tables against the training step.",
        title="The tables in numbers, during training",
        caption="The mean norm of a row; how alike neighbouring rows are; how many directions the rows use.",
    )


def which_were_trained(tables: Tables) -> str:
    """Returns a sentence on whether any row kept its initial values."""
    rows = untrained_rows(tables, max(tables))
    if not rows:
        return "Every row was trained."
    named = ", ".join(f"{row:,}" for row in rows[:5]) + (" and others" if len(rows) > 5 else "")
    were, kept = ("was", "it keeps its") if len(rows) == 1 else ("were", "they keep their")
    return f"{len(rows):,} of {len(tables[0]):,} rows {were} never trained: {kept} initial values (row {named})."
