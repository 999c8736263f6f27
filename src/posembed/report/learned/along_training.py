"""Pictures of learned tables along their training, from the start to the last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from posembed.report.drawing import (
    INK,
    LETTER,
    MUTED,
    RULE,
    SERIES,
    TEXT,
    WIDTH,
    axes_at,
    new_figure,
    styles,
)
from posembed.report.labels import label_line_ends
from posembed.report.learned.pictures import COLOURS, norms
from posembed.tables.similarity import cosine_matrix, neighbour_cosine
from posembed.tables.spectrum import table_spectrum

Tables = Mapping[int, Tensor]
"""A table's rows (N, D) by training step, ascending from 0."""

FRAMES = 6
FAR_APART = 20
"""Values with a larger ratio than this get a logarithmic axis."""
LEAST_SHARE = 1e-4
"""Directions with a smaller share of the variance are not drawn."""


def frames(steps: Sequence[int], count: int = FRAMES) -> list[int]:
    """Chooses the first step, and others evenly from 40% of the steps on: little happens before."""
    last = len(steps) - 1
    middle = last * 0.4
    places = {round(middle + index * (last - middle) / (count - 2)) for index in range(count - 1)}
    return [steps[place] for place in sorted({0, *places})]


def table_along_figure(tables: Tables) -> Figure:
    """Draws one table at several steps: the cosine of every two rows; below, row norms and spectrum."""
    side, between, above = 132, 22, 26
    chosen = frames(list(tables))
    down = -(-len(chosen) // 3)
    below = down * (side + above) + 34
    height = below + 110 + 42
    figure = new_figure(height)
    for place, step in enumerate(chosen):
        left, top = place % 3 * (side + between), above + place // 3 * (side + above)
        show_cosines(axes_at(figure, left=left, top=top, width=side, height=side), tables[step], when(step))
    wide = (WIDTH - 2 * 36 - 24) / 2
    row_norms = axes_at(figure, left=36, top=below, width=wide, height=110)
    shares = axes_at(figure, left=WIDTH - wide - 8, top=below, width=wide, height=110)
    for place, step in enumerate(chosen):
        held = table_spectrum(tables[step]).variance_shares
        drawn = held.where(held >= LEAST_SHARE, float("nan"))
        for axes, curve in ((row_norms, norms(tables[step])), (shares, drawn)):
            axes.plot(curve.numpy(), color=SERIES[0], alpha=(place + 1) / len(chosen), linewidth=1.4)
    _panel(row_norms, "norm of each row", below="row")
    row_norms.set_ylim(bottom=0)
    _panel(shares, "variance by direction", below="direction")
    shares.set_yscale("log", nonpositive="mask")
    shares.set_ylim(LEAST_SHARE, 1.2)
    shares.yaxis.set_minor_locator(NullLocator())
    return figure


def show_cosines(axes: Axes, rows: Tensor, title: str) -> None:
    """Draws the cosine of every two rows of (N, D), without ticks."""
    axes.set_title(title, loc="left", fontsize=TEXT - 1, color=MUTED, pad=4, parse_math=False)
    axes.imshow(cosine_matrix(rows).numpy(), cmap=COLOURS, vmin=-1, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def when(step: int) -> str:
    return "at the start" if step == 0 else f"after {step:,} {'step' if step == 1 else 'steps'}"


def untrained_rows(tables: Tables, step: int) -> list[int]:
    """Returns the rows that still have exactly their initial values after ``step`` steps."""
    return [int(row) for row in (tables[step] == tables[0]).all(dim=1).nonzero()]


MEASURES: dict[str, Callable[[Tables, int], float]] = {
    "norm of a row, mean": lambda tables, step: norms(tables[step]).mean().item(),
    "cosine of neighbouring rows, mean": lambda tables, step: neighbour_cosine(tables[step]).mean().item(),
    "effective rank": lambda tables, step: table_spectrum(tables[step]).effective_rank,
}
UNTRAINED = "rows that no step has changed yet"


def measures_along_figure(by_name: Mapping[str, Tables]) -> Figure:
    """Draws single numbers about each table by step, one line per table."""
    panels = dict(MEASURES)
    if any(untrained_rows(tables, step) for tables in by_name.values() for step in tables if step > 0):
        panels[UNTRAINED] = lambda tables, step: len(untrained_rows(tables, step))
    each = 150
    figure = new_figure(each * len(panels) + 24)
    drawn = styles(list(by_name))
    room = max(map(len, by_name)) * LETTER + 24 if len(by_name) > 1 else 12
    for place, (title, measure) in enumerate(panels.items()):
        axes = axes_at(figure, left=40, top=26 + place * each, width=WIDTH - 40 - room, height=each - 52)
        curves = {name: [measure(tables, step) for step in tables] for name, tables in by_name.items()}
        for name, curve in curves.items():
            style = drawn[name]
            axes.plot(list(by_name[name]), curve, color=style.colour, linestyle=style.line, linewidth=1.6)
        _panel(axes, title, below="training step (log scale)" if place == len(panels) - 1 else "")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(step for tables in by_name.values() for step in tables))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        lasts = [curve[-1] for curve in curves.values()]
        if max(lasts) > FAR_APART * min(lasts) > 0:
            axes.set_yscale("log", nonpositive="mask")
            axes.set_ylim(min(lasts) / 4, max(lasts) * 2)
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.yaxis.set_minor_locator(NullLocator())
        if len(by_name) > 1:
            axes.set_ylim(*axes.get_ylim())
            ends = [(last, name, drawn[name].colour) for name, last in zip(curves, lasts, strict=True)]
            label_line_ends(axes, ends)
    return figure


def starts_figure(by_name: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Draws the cosine of every two rows before and after training, two tables per line."""
    side, above, between = 98, 40, 10
    down = -(-len(by_name) // 2)
    figure = new_figure(down * (side + above) + 6)
    for place, (name, tables) in enumerate(by_name.items()):
        left = place % 2 * (2 * (side + between) + 16)
        top = above + place // 2 * (side + above)
        tall = figure.get_figheight() * 72
        figure.text(left / WIDTH, 1 - (top - 22) / tall, name, fontsize=TEXT, color=INK, parse_math=False)
        for column, (title, rows) in enumerate(zip(("before", "after"), tables, strict=True)):
            axes = axes_at(figure, left=left + column * (side + between), top=top, width=side, height=side)
            show_cosines(axes, rows, title)
    return figure


def _panel(axes: Axes, title: str, *, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=TEXT - 1, color=INK, pad=5)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    if below:
        axes.set_xlabel(below, fontsize=TEXT - 1, color=MUTED)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
