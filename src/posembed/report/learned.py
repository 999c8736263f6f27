"""Figures of what a run learned: its table before, during and after training, and where its heads look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import load_attention, load_tables
from posembed.plots.attention import attention_by_distance
from posembed.plots.by_position import Panel, by_position_figure
from posembed.plots.canvas import figure_of
from posembed.plots.several import before_after, compare, during_training
from posembed.report.page import Picture, picture
from posembed.statistics import Estimate
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.spectrum import table_spectrum

FAR_APART = 20
"""Values with a larger ratio than this get a logarithmic axis."""
Tables = Mapping[int, Tensor]
"""A table's rows (N, D) by training step, ascending from 0."""

HOW_TO_READ = (
    "Blue is negative, white zero, red positive. Stripes along the diagonal of the cosines mean that nearby rows are "
    "similar."
)
HOW_HEADS_READ = (
    "The mean attention weight by distance, on held-out text at the training length: one panel per layer, one line per "
    "head. The dashed line is a head that attends equally to every token it sees."
)


def untrained_rows(tables: Tables, step: int) -> list[int]:
    """Returns the rows that still have exactly their initial values after ``step`` steps."""
    return [int(row) for row in (tables[step] == tables[0]).all(dim=1).nonzero()]


MEASURES: dict[str, Callable[[Tables, int], float]] = {
    "mean norm of the rows": lambda tables, step: tables[step].double().norm(dim=1).mean().item(),
    "mean cosine of neighbouring rows": lambda tables, step: neighbour_cosine(tables[step]).mean().item(),
    "effective rank": lambda tables, step: table_spectrum(tables[step]).effective_rank,
    "rows that still have their initial values": lambda tables, step: len(untrained_rows(tables, step)),
}


def first_kept(runs: RunFolder, results: Sequence[RunResult], kind: str) -> dict[str, tuple[RunResult, Path]]:
    """Returns, for each name, the first successful run whose file exists, and that file."""
    found: dict[str, tuple[RunResult, Path]] = {}
    for result in sorted(results, key=lambda result: result.spec.seed):
        file = runs.file(kind, result.spec)
        if result.failure is None and file.exists():
            found.setdefault(result.spec.compared, (result, file))
    return found


def tables_of(runs: RunFolder, results: Sequence[RunResult]) -> dict[str, tuple[int, Tables]]:
    """Returns (seed, tables) of the first successful run of each name that kept its rows."""
    kept = first_kept(runs, results, "tables")
    return {name: (run.spec.seed, load_tables(file, run.spec.steps)) for name, (run, file) in kept.items()}


def table_pictures(runs: RunFolder, results: Sequence[RunResult]) -> Iterator[Picture]:
    """Yields figures of each table before, during and after training, then one with numbers about all tables."""
    tables_by_name = tables_of(runs, results)
    for name, (seed, tables) in tables_by_name.items():
        first, *_, last = tables.values()
        yield picture(
            figure_of(before_after, first, last, names=("at initialisation", "after training")),
            name=name,
            described=f"The table of {name} at initialisation and after training: values, cosines of its rows, norms.",
            title=f"{name}, seed {seed}: {len(last):,} rows of {last.size(1):,}",
            caption=HOW_TO_READ,
        )
        yield picture(
            figure_of(during_training, tables),
            name=f"{name}-along",
            described=f"The table of {name} during training: cosines of its rows, norms, spectrum.",
            title=f"{name}, during training",
            caption=f"Darker lines are later steps. {which_were_trained(tables)}",
        )
    if tables_by_name:
        yield measures_picture({name: tables for name, (_, tables) in tables_by_name.items()})


def measures_picture(tables_by_name: dict[str, Tables]) -> Picture:
    panels = []
    for title, measure in MEASURES.items():
        found = {name: {step: measure(tables, step) for step in tables} for name, tables in tables_by_name.items()}
        lasts = [list(curve.values())[-1] for curve in found.values()]
        lines = {name: {step: Estimate(value) for step, value in curve.items()} for name, curve in found.items()}
        panels.append(Panel(title, lines, logarithmic=max(lasts) > FAR_APART * min(lasts) > 0))
    return picture(
        by_position_figure(panels, list(tables_by_name), steps=True),
        name="tables-along",
        described="Norms, neighbour cosines, effective ranks and untrained rows of the tables by training step.",
        title="The tables in numbers, during training",
        caption="By training step: the mean norm of the rows, the similarity of neighbouring rows, the number of "
        "directions that the rows use, and the number of rows that still have their initial values.",
    )


def which_were_trained(tables: Tables) -> str:
    rows, every = untrained_rows(tables, max(tables)), len(tables[0])
    if not rows:
        return f"Training changed all {every:,} rows."
    named = ", ".join(f"{row:,}" for row in rows[:5]) + (" and others" if len(rows) > 5 else "")
    return f"Training changed {every - len(rows):,} of {every:,} rows, but not row{'s' * (len(rows) > 1)} {named}."


def compared_picture(tables: Mapping[str, Tensor], name: str, *, title: str, caption: str) -> Picture:
    """Returns a figure of tables (N, D) side by side."""
    return picture(
        figure_of(compare, tables),
        name=name,
        described="The cosines of each table's rows, their similarity by distance, and their variance.",
        title=title,
        caption=caption,
    )


def attention_of(runs: RunFolder, results: Sequence[RunResult]) -> dict[str, tuple[RunResult, Tensor]]:
    """Returns the first successful run of each name that kept its attention, and the weights (layers, H, L)."""
    kept = first_kept(runs, results, "attention")
    return {name: (run, load_attention(file)) for name, (run, file) in kept.items()}


def attention_pictures(runs: RunFolder, results: Sequence[RunResult]) -> Iterator[Picture]:
    for name, (result, weights) in attention_of(runs, results).items():
        yield picture(
            figure_of(attention_by_distance, weights, window=result.window),
            name=f"{name}-attention",
            described=f"Mean attention by distance of each head of {name}.",
            title=f"{name}, {result.spec.case}",
            caption=sharpest(weights),
        )


def sharpest(weights: Tensor) -> str:
    """Returns a sentence on the largest of the weights (layers, H, L), apart from the weight of a token on itself."""
    if weights.size(2) < 2:
        return ""
    layer, head, back = (int(i) for i in torch.unravel_index(weights[..., 1:].argmax(), weights[..., 1:].shape))
    share = weights[layer, head, back + 1].item()
    return (
        f"The largest weight is in layer {layer + 1}: head {head + 1} gives {share:.0%} of its attention to distance "
        f"{back + 1:,}."
    )
