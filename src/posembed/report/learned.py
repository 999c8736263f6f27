"""Figures of what a run learned: its table before, during and after training, and where its heads look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from posembed.lab.attention import looking_everywhere
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import load_attention, load_tables
from posembed.report.drawing import (
    MUTED,
    SERIES,
    WIDTH,
    axes_at,
    fix_ticks,
    heading,
    heat_map,
    key_above,
    label_line_ends,
    new_figure,
    room_for,
    styles,
)
from posembed.report.page import Picture, picture
from posembed.tables.similarity import cosine_matrix, neighbour_cosine
from posembed.tables.spectrum import table_spectrum

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
LEAST_WEIGHT = 1e-4
"""Smaller weights are not drawn."""
FRAMES = 6
FAR_APART = 20
"""Values with a larger ratio than this get a logarithmic axis."""
LEAST_SHARE = 1e-4
"""Directions with a smaller share of the variance are not drawn."""


def untrained_rows(tables: Tables, step: int) -> list[int]:
    """Returns the rows that still have exactly their initial values after ``step`` steps."""
    return [int(row) for row in (tables[step] == tables[0]).all(dim=1).nonzero()]


MEASURES: dict[str, Callable[[Tables, int], float]] = {
    "mean norm of the rows": lambda tables, step: tables[step].double().norm(dim=1).mean().item(),
    "mean cosine of neighbouring rows": lambda tables, step: neighbour_cosine(tables[step]).mean().item(),
    "effective rank": lambda tables, step: table_spectrum(tables[step]).effective_rank,
    "rows that still have their initial values": lambda tables, step: len(untrained_rows(tables, step)),
}


def first_kept(
    runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]], kind: str
) -> dict[str, tuple[RunResult[Any, Any], Path]]:
    """Returns, for each name, the first successful run whose file exists, and that file."""
    found: dict[str, tuple[RunResult[Any, Any], Path]] = {}
    for result in sorted(results, key=lambda result: result.spec.seed):
        file = runs.file(kind, result.spec)
        if result.failure is None and file.exists():
            found.setdefault(result.spec.compared, (result, file))
    return found


def tables_of(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> dict[str, tuple[int, Tables]]:
    """Returns (seed, tables) of the first successful run of each name that kept its rows."""
    kept = first_kept(runs, results, "tables")
    return {name: (run.spec.seed, load_tables(file, run.spec.steps)) for name, (run, file) in kept.items()}


def table_pictures(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterator[Picture]:
    """Yields figures of each table before, during and after training, then one with numbers about all tables."""
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
            caption=f"Darker lines are later steps. {which_were_trained(tables)}",
        )
    if tables_by_name:
        yield measures_picture({name: tables for name, (_, tables) in tables_by_name.items()})


def measures_picture(tables_by_name: dict[str, Tables]) -> Picture:
    return picture(
        measures_along_figure(tables_by_name),
        name="tables-along",
        described="Norms, neighbour cosines, effective ranks and untrained rows of the tables by training step.",
        title="The tables in numbers, during training",
        caption="By training step: the mean norm of the rows, the similarity of neighbouring rows, the number of "
        "directions that the rows use, and the number of rows that still have their initial values.",
    )


def which_were_trained(tables: Tables) -> str:
    rows = untrained_rows(tables, max(tables))
    named = ", ".join(f"{row:,}" for row in rows[:5]) + (" and others" if len(rows) > 5 else "")
    which = f" (row {named})" if rows else ""
    return f"Training left {len(rows):,} of {len(tables[0]):,} rows at their initial values{which}."


def table_figure(initial: Tensor, final: Tensor) -> Figure:
    """Draws values, cosines and norms of rows (N, D)."""
    left, side, between = 40, 178, 36
    figure = new_figure(590)
    below = axes_at(figure, left=left, top=460, width=2 * side + between, height=90, title="norms", x="row", grid="y")
    stages = (("at initialisation", initial, MUTED), ("after training", final, SERIES[0]))
    for column, (stage, rows, colour) in enumerate(stages):
        at = left + column * (side + between)
        heading(figure, stage, left=at)
        largest = rows.abs().max().item()
        dimension, row = ("dimension", "row") if column == 0 else ("", "")
        values = f"values, ± {largest:.2g}"
        heat_map(figure, rows.T, largest or 1.0, left=at, top=40, width=side, height=150, title=values, y=dimension)
        alike = "cosines between rows, ± 1"
        heat_map(figure, cosine_matrix(rows), 1.0, left=at, top=236, width=side, height=side, title=alike, y=row)
        below.plot(rows.double().norm(dim=1).numpy(), color=colour, linewidth=1.6, label=stage)
    below.set_xlim(-0.5, len(final) - 0.5)
    below.set_ylim(bottom=0)
    below.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    below.yaxis.set_major_locator(MaxNLocator(3))
    key_above(below)
    return figure


def frames(steps: Sequence[int], count: int = FRAMES) -> list[int]:
    """Chooses the first step, and steps evenly spread over the last 60% of those given, since little happens before."""
    last = len(steps) - 1
    middle = last * 0.4
    chosen = {round(middle + index * (last - middle) / (count - 2)) for index in range(count - 1)}
    return [steps[index] for index in sorted({0, *chosen})]


def table_along_figure(tables: Tables) -> Figure:
    """Draws one table at several steps: the cosine of each pair of rows, and row norms and the spectrum below."""
    side, between, above = 132, 22, 26
    chosen = frames(list(tables))
    below = -(-len(chosen) // 3) * (side + above) + 34
    figure = new_figure(below + 110 + 42)
    wide = (WIDTH - 2 * 36 - 24) / 2
    row_norms, shares = (
        axes_at(figure, left=left, top=below, width=wide, height=110, title=title, x=x, grid="y")
        for left, title, x in (
            (36, "norm of each row", "row"),
            (WIDTH - wide - 8, "variance by direction", "direction"),
        )
    )
    for index, step in enumerate(chosen):
        left, top = index % 3 * (side + between), above + index // 3 * (side + above)
        cosines = cosine_matrix(tables[step])
        heat_map(figure, cosines, 1.0, left=left, top=top, width=side, height=side, title=f"step {step:,}", ticks=0)
        held = table_spectrum(tables[step]).variance_shares
        drawn = held.where(held >= LEAST_SHARE, float("nan"))
        for axes, curve in ((row_norms, tables[step].double().norm(dim=1)), (shares, drawn)):
            axes.plot(curve.numpy(), color=SERIES[0], alpha=(index + 1) / len(chosen), linewidth=1.4)
    for axes in (row_norms, shares):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    row_norms.set_ylim(bottom=0)
    row_norms.yaxis.set_major_locator(MaxNLocator(4))
    shares.set_yscale("log", nonpositive="mask")
    shares.set_ylim(LEAST_SHARE, 1.2)
    shares.yaxis.set_minor_locator(NullLocator())
    return figure


def measures_along_figure(by_name: Mapping[str, Tables]) -> Figure:
    """Draws single numbers about each table by step, one line per table."""
    each = 150
    figure = new_figure(each * len(MEASURES) + 24)
    drawn = styles(list(by_name))
    named = by_name if len(by_name) > 1 else []
    for index, (title, measure) in enumerate(MEASURES.items()):
        x = "training step (log scale)" if index == len(MEASURES) - 1 else ""
        top, width = 26 + index * each, WIDTH - 40 - room_for(named)
        axes = axes_at(figure, left=40, top=top, width=width, height=each - 52, title=title, x=x, grid="y")
        curves = {name: [measure(tables, step) for step in tables] for name, tables in by_name.items()}
        for name, curve in curves.items():
            axes.plot(list(by_name[name]), curve, color=drawn[name].colour, linestyle=drawn[name].line, linewidth=1.6)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(step for tables in by_name.values() for step in tables))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(4))
        lasts = [curve[-1] for curve in curves.values()]
        if max(lasts) > FAR_APART * min(lasts) > 0:
            axes.set_yscale("log", nonpositive="mask")
            axes.set_ylim(min(lasts) / 4, max(lasts) * 2)
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(*axes.get_ylim())  # fixed before the labels are placed
        label_line_ends(axes, [(curves[name][-1], name, drawn[name].colour) for name in named])
    return figure


def starts_figure(by_name: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Draws the cosine of each pair of rows before and after training, two tables per line."""
    side, above, between = 98, 40, 10
    figure = new_figure(-(-len(by_name) // 2) * (side + above) + 6)
    for index, (name, tables) in enumerate(by_name.items()):
        left, top = index % 2 * (2 * (side + between) + 16), above + index // 2 * (side + above)
        heading(figure, name, left=left, top=top - 36)
        for column, (title, rows) in enumerate(zip(("before", "after"), tables, strict=True)):
            at = left + column * (side + between)
            heat_map(figure, cosine_matrix(rows), 1.0, left=at, top=top, width=side, height=side, title=title, ticks=0)
    return figure


def attention_figure(weights: Tensor, *, window: int | None) -> Figure:
    """Draws weights (layers, H, L) on logarithmic axes. The dashed line is a head with equal weights."""
    layers, _, length = weights.shape
    wide, tall, between, above = 122, 110, 12, 30
    height = -(-layers // 3) * (tall + above) + 48
    figure = new_figure(height)
    everywhere = looking_everywhere(length, window)
    farthest = min(length, window or length) - 1
    for layer in range(layers):
        down, across = divmod(layer, 3)
        left, top = 48 + across * (wide + between), above + down * (tall + above)
        axes = axes_at(figure, left=left, top=top, width=wide, height=tall, title=f"layer {layer + 1}", grid="y")
        axes.plot(_drawn(everywhere), color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
        for head, curve in enumerate(weights[layer]):
            axes.plot(_drawn(curve), color=SERIES[head % len(SERIES)], linewidth=1.3, alpha=0.9)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("log")
        axes.set_xlim(0, max(farthest, 1))
        axes.set_ylim(LEAST_WEIGHT, 1)
        fix_ticks(axes.xaxis, [place for place in (0, 1, 4, 16, 64, 256, 1024, 4096) if place <= farthest])
        fix_ticks(axes.yaxis, [1e-4, 1e-2, 1])
        axes.yaxis.set_major_formatter(FixedFormatter([".01%", "1%", "100%"] if across == 0 else [""] * 3))
    heading(figure, "tokens back (log scale)", left=48, top=height - 24)
    return figure


def attention_pictures(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterator[Picture]:
    for name, (result, file) in first_kept(runs, results, "attention").items():
        weights = load_attention(file)
        yield picture(
            attention_figure(weights, window=result.window),
            name=f"{name}-attention",
            described=f"Mean attention by distance of each head of {name}.",
            title=f"{name}, seed {result.spec.seed}",
            caption=sharpest(weights),
        )


def sharpest(weights: Tensor) -> str:
    """Returns a sentence on the largest of the weights (layers, H, L), apart from that of a token on itself."""
    if weights.size(2) < 2:
        return ""
    layer, head, back = (int(i) for i in torch.unravel_index(weights[..., 1:].argmax(), weights[..., 1:].shape))
    share, where = weights[layer, head, back + 1].item(), f"distance {back + 1:,}"
    return f"Head {head + 1} of layer {layer + 1} is the sharpest: {share:.0%} of its attention is at {where}."


def _drawn(curve: Tensor) -> list[float]:
    return curve.double().where(curve >= LEAST_WEIGHT, float("nan")).tolist()
