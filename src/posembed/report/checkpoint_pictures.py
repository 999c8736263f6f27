"""Figures of one position table, as rows in a line or as cells of a grid: values, similarities and spectrum.

Figures of large tables show every k-th row; numbers are computed on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posembed.report.drawing import INK, MUTED, SERIES, TEXT, WIDTH, axes_at, fix_ticks, heat_map, new_figure
from posembed.tables.similarity import cosine_matrix, neighbour_cosine
from posembed.tables.spectrum import Spectrum, fourier_power

MOST_DRAWN = 512  # rows or columns of a figure: no screen shows more
COMPONENTS = 6
WAVE = 0.7  # a direction is a wave if this share of its power is within a quarter of one frequency
LEFT = 44
WIDE = WIDTH - LEFT - 8


def thinned(rows: Tensor, most: int = MOST_DRAWN) -> tuple[Tensor, int]:
    """Returns every k-th row and k, the smallest step that gives at most ``most`` rows."""
    step = math.ceil(len(rows) / most)
    return rows[::step], step


def every(step: int) -> str:
    return f"; 1 row in {step}" if step > 1 else ""


def along_figure(rows: Tensor, *, first: int, marked: tuple[int, ...]) -> Figure:
    """Draws rows (N, D) in a line: values, norms, and cosines of neighbours, one below the other.

    first: the index of the first row in its table. marked: the indices of rows to mark.
    """
    figure = new_figure(430)
    drawn, step = thinned(rows)
    last = first + len(rows)
    sample, _ = thinned(rows.abs().float().flatten(), most=200_000)
    largest = sample.quantile(0.995).item() or 1.0  # a few large values must not turn all others white
    title, extent = f"values, ± {largest:.2g}{every(step)}", (first, last, rows.size(1), 0)
    where: dict[str, Any] = {"left": LEFT, "top": 26, "width": WIDE, "height": 150, "title": title}
    values = heat_map(figure, thinned(drawn.T)[0], largest, extent=extent, y="dimension", **where)
    values.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    norms = rows.double().norm(dim=1)
    lengths = row_line(figure, norms, first=first, top=214, height=72, title="norm of each row")
    lengths.set_ylim(0, 1.25 * norms.max().item() or 1.0)
    row_line(
        figure, neighbour_cosine(rows), first=first, top=324, height=62, title="cosine of each row to the next", x="row"
    )
    shown = [row for row in marked if first <= row < last]
    for row in shown:
        lengths.plot(row, norms[row - first].item(), "o", color=SERIES[3], markersize=4, clip_on=False)
    label_marks(lengths, shown, norms, first)
    return figure


def label_marks(axes: Axes, marked: list[int], norms: Tensor, first: int) -> None:
    """Writes the numbers of the marked rows, except where they would overlap."""
    low, high = axes.get_xlim()
    near, last = (high - low) * 0.09, -math.inf
    for row in marked:
        if row - last < near:
            continue
        last = row
        offset, side = (-5, "right") if row > low + 0.9 * (high - low) else (5, "left")
        how: dict[str, Any] = {"horizontalalignment": side, "fontsize": TEXT - 1, "color": SERIES[3]}
        place = row, norms[row - first].item()
        axes.annotate(f"{row:,}", place, xytext=(offset, 3), textcoords="offset points", **how)


def row_line(figure: Figure, values: Tensor, *, first: int, **where: Any) -> Axes:
    axes = axes_at(figure, left=LEFT, width=WIDE, grid="y", **where)
    drawn, step = thinned(values, most=4 * MOST_DRAWN)
    axes.plot(range(first, first + len(values), step), drawn.tolist(), color=SERIES[0], linewidth=1.1)
    axes.set_xlim(first, first + max(len(values), 2))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    return axes


def similarity_figure(rows: Tensor, *, first: int) -> Figure:
    figure = new_figure(400)
    drawn, step = thinned(rows)
    last = first + len(rows)
    where: dict[str, Any] = {"top": 26, "height": 330, "left": LEFT, "width": 330, "x": "row", "y": "row"}
    title = f"cosines between rows{every(step)}"
    heat_map(figure, cosine_matrix(drawn), 1.0, extent=(first, last, last, first), title=title, **where)
    where = {"top": 26, "height": 330, "left": LEFT + 348, "width": 10}
    scale = heat_map(figure, torch.linspace(1, -1, 101)[:, None], 1.0, extent=(0, 1, -1, 1), ticks=0, **where)
    scale.yaxis.tick_right()
    fix_ticks(scale.yaxis, (-1, -0.5, 0, 0.5, 1))
    for side in ("left", "bottom"):
        scale.spines[side].set_visible(False)
    return figure


def spectrum_figure(spectrum: Spectrum) -> Figure:
    """Draws the singular values, and the cumulative share of the variance."""
    figure = new_figure(250)
    shares, few = spectrum.variance_shares, spectrum.directions_for(0.9)
    shown = max(2, min(len(shares), 2 * spectrum.directions_for(0.99)))
    directions = range(1, shown + 1)
    where: dict[str, Any] = {"top": 26, "width": 168, "height": 175, "x": "direction, strongest first", "grid": "y"}
    strengths = axes_at(figure, left=LEFT, title="singular values", **where)
    strengths.bar(directions, spectrum.singular_values[:shown].tolist(), width=1.0, color=SERIES[0])
    together = axes_at(figure, left=WIDTH - 168 - 10, title="cumulative variance share", **where)
    together.plot(directions, (100 * shares.cumsum(0)[:shown]).tolist(), color=SERIES[0], linewidth=1.8)
    together.plot([0, few, few], [90, 90, 0], color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
    together.annotate(f"90% in {few:,}", (few, 45), xytext=(5, 0), textcoords="offset points", fontsize=TEXT, color=INK)
    together.set_ylim(0, 103)
    together.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    for axes in (strengths, together):
        axes.set_xlim(0.4, shown + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return figure


def components_figure(spectrum: Spectrum, *, first: int) -> Figure:
    """Draws each row's coordinates along the strongest directions, one line per direction."""
    number = min(COMPONENTS, spectrum.left_vectors.size(1))
    each, gap = 46, 24
    figure = new_figure(20 + number * (each + gap) + 24)
    parts = spectrum.left_vectors * spectrum.singular_values
    power = fourier_power(spectrum.left_vectors)
    for index in range(number):
        is_last = index == number - 1
        title = f"direction {index + 1}: {100 * spectrum.variance_shares[index]:.0f}% of the variance"
        length = wave_length(power[:, index], len(parts))
        title += "" if length is None else f", waves of about {length:.3g} rows"
        where: dict[str, Any] = {"top": 22 + index * (each + gap), "height": each, "x": "row" if is_last else ""}
        axes = row_line(figure, parts[:, index], first=first, title=title, **where)
        axes.axhline(0, color=MUTED, linewidth=0.6)
        axes.yaxis.set_major_locator(MaxNLocator(2))
        axes.tick_params(labelbottom=is_last)
    return figure


def wave_length(power: Tensor, rows: int) -> float | None:
    """Returns the wavelength, in rows, of a direction with this power by frequency; None if it is not a wave."""
    peak = int(power.argmax())
    low, high = min(peak - 1, math.floor(0.75 * peak)), max(peak + 1, math.ceil(1.25 * peak))
    return rows / peak if peak > 0 and power[max(low, 0) : high + 1].sum() > WAVE else None


def fourier_figure(spectrum: Spectrum) -> Figure:
    """Draws the power of the strongest directions by frequency, in waves per table length."""
    number = min(16, spectrum.left_vectors.size(1))
    power = fourier_power(spectrum.left_vectors[:, :number]).T
    bins = min(power.size(1), int((power.amax(dim=0) > 0.01).nonzero().max()) + 9)
    power = F.adaptive_max_pool1d(power[:, :bins], min(bins, MOST_DRAWN))
    figure = new_figure(90 + 11 * number)
    where: dict[str, Any] = {"left": LEFT, "top": 26, "width": WIDE, "height": 11 * number, "y": "direction"}
    where |= {"title": "strength of each wave (square root of its share)", "x": "waves in the length of the table"}
    heat_map(figure, power.sqrt(), 1.0, extent=(-0.5, bins - 0.5, number + 0.5, 0.5), **where)
    return figure


def grid_similarity_figure(rows: Tensor, grid: tuple[int, int]) -> Figure:
    """Draws nine maps of the grid: the cosine of every cell to one cell. The nine cells lie 3 x 3 across the grid."""
    high, wide = grid
    unit = F.normalize(rows.double(), dim=1)
    chosen = [(round(r * (high - 1)), round(c * (wide - 1))) for r in (0.1, 0.5, 0.9) for c in (0.1, 0.5, 0.9)]
    figure, all_axes = grid_maps([(f"row {r}, column {c}", unit @ unit[r * wide + c], 1.0) for r, c in chosen], grid)
    for axes, (row, column) in zip(all_axes, chosen, strict=True):
        axes.plot(column, row, "s", markerfacecolor="none", markeredgecolor=INK, markersize=5)
    return figure


def grid_components_figure(spectrum: Spectrum, grid: tuple[int, int]) -> Figure:
    shares, parts = spectrum.variance_shares, spectrum.left_vectors * spectrum.singular_values
    maps = [
        (f"direction {index + 1}: {100 * shares[index]:.0f}%", part, part.abs().max().item() or 1.0)
        for index, part in enumerate(parts.T[:COMPONENTS])
    ]
    return grid_maps(maps, grid)[0]


def grid_maps(maps: Sequence[tuple[str, Tensor, float]], grid: tuple[int, int]) -> tuple[Figure, list[Axes]]:
    """Draws maps, each (title, values (H * W,), the value of the strongest red), three per line."""
    side, between = 118, 28
    tall = side * min(max(grid[0] / grid[1], 0.3), 3.0)
    figure, drawn = new_figure(22 + math.ceil(len(maps) / 3) * (tall + 40)), []
    for index, (title, values, largest) in enumerate(maps):
        left, top = 20 + (index % 3) * (side + between), 22 + (index // 3) * (tall + 40)
        where: dict[str, Any] = {"left": left, "top": top, "width": side, "height": tall}
        drawn.append(heat_map(figure, values.reshape(grid), largest, title=title, **where))
    return figure, drawn
