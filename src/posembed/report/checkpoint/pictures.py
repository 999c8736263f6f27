"""Figures of one position table: its values, similarities and spectrum; rows in a line, or cells of a grid.

Large tables are drawn thinned, every k-th row of them; all figures are computed on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posembed.report.drawing import INK, MUTED, RULE, SERIES, TEXT, WIDTH, axes_at, fix_ticks, new_figure
from posembed.report.learned.pictures import image, norms, small_title
from posembed.tables.similarity import cosine_matrix, neighbour_cosine
from posembed.tables.spectrum import Spectrum, fourier_power

MOST_DRAWN = 512  # rows or columns of a picture: no screen shows more
COMPONENTS = 6
WAVE = 0.7  # the share of its power within a quarter of one frequency that makes a direction a wave
LEFT = 44
WIDE = WIDTH - LEFT - 8


def thinned(rows: Tensor, most: int = MOST_DRAWN) -> tuple[Tensor, int]:
    """Returns every k-th row, at most ``most`` of them, and k."""
    step = math.ceil(len(rows) / most)
    return rows[::step], step


def label(axes: Axes, *, x: str = "", y: str = "") -> None:
    axes.set_xlabel(x, fontsize=TEXT - 1, color=MUTED)
    axes.set_ylabel(y, fontsize=TEXT - 1, color=MUTED)


def along_figure(rows: Tensor, *, first: int, marked: tuple[int, ...]) -> Figure:
    """Draws rows (N, D) in a line: values, norms, and the cosine of neighbours, one below the other.

    first: the index of the first row in its table. marked: indices that stand out.
    """
    figure = new_figure(430)
    drawn, step = thinned(rows)
    last = first + len(rows)
    values = axes_at(figure, left=LEFT, top=26, width=WIDE, height=150)
    sample, _ = thinned(rows.abs().float().flatten(), most=200_000)
    largest = sample.quantile(0.995).item() or 1.0  # so that a few large values do not turn all others white
    title = f"values, ± {largest:.2g}" + (f"; every {step}th row" if step > 1 else "")
    image(values, thinned(drawn.T)[0], largest, title=title, extent=(first, last, rows.size(1), 0))
    values.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    label(values, y="dimension")
    of_rows, shown = norms(rows), [row for row in marked if first <= row < last]
    lengths = axes_at(figure, left=LEFT, top=214, width=WIDE, height=72)
    row_line(lengths, of_rows, first=first, title="norm of each row")
    lengths.set_ylim(0, 1.25 * of_rows.max().item() or 1.0)
    cosines = axes_at(figure, left=LEFT, top=324, width=WIDE, height=62)
    row_line(cosines, neighbour_cosine(rows), first=first, title="cosine of each row to the next")
    label(cosines, x="row")
    for row in shown:
        lengths.plot(row, of_rows[row - first].item(), "o", color=SERIES[3], markersize=4, clip_on=False)
    label_marks(lengths, shown, of_rows, first)
    return figure


def label_marks(axes: Axes, marked: list[int], lengths: Tensor, first: int) -> None:
    """Writes the numbers of the rows that stand out, as far as they do not overlap."""
    low, high = axes.get_xlim()
    near, last = (high - low) * 0.09, -math.inf
    for row in marked:
        if row - last < near:
            continue
        last = row
        right = row > low + 0.9 * (high - low)
        axes.annotate(
            f"{row:,}",
            (row, lengths[row - first].item()),
            xytext=(-5 if right else 5, 3),
            textcoords="offset points",
            horizontalalignment="right" if right else "left",
            fontsize=TEXT - 1,
            color=SERIES[3],
        )


def row_line(axes: Axes, values: Tensor, *, first: int, title: str) -> None:
    drawn, step = thinned(values, most=4 * MOST_DRAWN)
    axes.plot(range(first, first + len(values), step), drawn.tolist(), color=SERIES[0], linewidth=1.1)
    small_title(axes, title)
    axes.set_xlim(first, first + max(len(values), 2))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(axis="y", color=RULE, linewidth=0.5)


def similarity_figure(rows: Tensor, *, first: int) -> Figure:
    """Draws the cosine of every two rows (N, D)."""
    figure = new_figure(400)
    drawn, step = thinned(rows)
    axes = axes_at(figure, left=LEFT, top=26, width=330, height=330)
    last = first + len(rows)
    title = "cosine of two rows" + (f", every {step}th" if step > 1 else "")
    image(axes, cosine_matrix(drawn), 1.0, title=title, extent=(first, last, last, first))
    label(axes, x="row", y="row")
    scale = axes_at(figure, left=LEFT + 348, top=26, width=10, height=330)
    image(scale, torch.linspace(1, -1, 101)[:, None], 1.0, title="", extent=(0, 1, -1, 1))
    scale.set_xticks([])
    scale.yaxis.tick_right()
    fix_ticks(scale.yaxis, (-1, -0.5, 0, 0.5, 1))
    scale.spines["left"].set_visible(False)
    scale.spines["bottom"].set_visible(False)
    return figure


def spectrum_figure(spectrum: Spectrum) -> Figure:
    """Draws the singular values, and the share of the variance that the first directions hold together."""
    figure = new_figure(250)
    shares = spectrum.variance_shares
    shown = max(2, min(len(shares), 2 * spectrum.directions_for(0.99)))
    places = range(1, shown + 1)
    strengths = axes_at(figure, left=LEFT, top=26, width=168, height=175)
    small_title(strengths, "singular values")
    strengths.bar(places, spectrum.singular_values[:shown].tolist(), width=1.0, color=SERIES[0])
    together = axes_at(figure, left=WIDTH - 168 - 10, top=26, width=168, height=175)
    small_title(together, "share of the variance, together")
    together.plot(places, (100 * shares.cumsum(0)[:shown]).tolist(), color=SERIES[0], linewidth=1.8)
    few = spectrum.directions_for(0.9)
    together.plot([0, few, few], [90, 90, 0], color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
    together.annotate(f"90% in {few:,}", (few, 45), xytext=(5, 0), textcoords="offset points", fontsize=TEXT, color=INK)
    together.set_ylim(0, 103)
    together.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    for axes in (strengths, together):
        axes.set_xlim(0.4, shown + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(axis="y", color=RULE, linewidth=0.5)
        label(axes, x="direction, the strongest first")
    return figure


def components_figure(spectrum: Spectrum, *, first: int) -> Figure:
    """Draws what each row holds of the strongest directions, one line per direction."""
    number = min(COMPONENTS, spectrum.left_vectors.size(1))
    each, gap = 46, 24
    figure = new_figure(20 + number * (each + gap) + 24)
    parts = spectrum.left_vectors * spectrum.singular_values
    power = fourier_power(spectrum.left_vectors)
    for index in range(number):
        axes = axes_at(figure, left=LEFT, top=22 + index * (each + gap), width=WIDE, height=each)
        title = f"direction {index + 1}: {100 * spectrum.variance_shares[index]:.0f}% of the variance"
        length = wave_length(power[:, index], len(parts))
        title += "" if length is None else f", waves of about {length:.3g} rows"
        row_line(axes, parts[:, index], first=first, title=title)
        axes.axhline(0, color=MUTED, linewidth=0.6)
        axes.yaxis.set_major_locator(MaxNLocator(2))
        if index < number - 1:
            axes.set_xticklabels([])
        else:
            label(axes, x="row")
    return figure


def wave_length(power: Tensor, rows: int) -> float | None:
    """Returns the rows per wave of a direction with this power by frequency; None if it is no wave."""
    peak = int(power.argmax())
    low, high = min(peak - 1, math.floor(0.75 * peak)), max(peak + 1, math.ceil(1.25 * peak))
    return rows / peak if peak > 0 and power[max(low, 0) : high + 1].sum() > WAVE else None


def fourier_figure(spectrum: Spectrum) -> Figure:
    """Draws how the power of the strongest directions divides over the waves that fit into the table."""
    number = min(16, spectrum.left_vectors.size(1))
    power = fourier_power(spectrum.left_vectors[:, :number]).T
    bins = min(power.size(1), int((power.amax(dim=0) > 0.01).nonzero().max()) + 9)
    power = F.adaptive_max_pool1d(power[:, :bins], min(bins, MOST_DRAWN))
    figure = new_figure(90 + 11 * number)
    axes = axes_at(figure, left=LEFT, top=26, width=WIDE, height=11 * number)
    extent = (-0.5, bins - 0.5, number + 0.5, 0.5)
    image(axes, power.sqrt(), 1.0, title="strength of each wave (root of its share)", extent=extent)
    label(axes, x="waves in the length of the table", y="direction")
    return figure


def grid_similarity_figure(rows: Tensor, grid: tuple[int, int]) -> Figure:
    """Draws the cosine to all other rows, on the grid, of nine cells: 3 x 3 of them across the grid."""
    high, wide = grid
    unit = F.normalize(rows.double(), dim=1)
    chosen = [(round(r * (high - 1)), round(c * (wide - 1))) for r in (0.1, 0.5, 0.9) for c in (0.1, 0.5, 0.9)]
    maps = [(f"row {r}, column {c}", unit @ unit[r * wide + c], (r, c)) for r, c in chosen]
    return grid_maps(maps, grid, largest=1.0)


def grid_components_figure(spectrum: Spectrum, grid: tuple[int, int]) -> Figure:
    """Draws what each cell holds of the strongest directions."""
    number = min(COMPONENTS, spectrum.left_vectors.size(1))
    parts = spectrum.left_vectors[:, :number] * spectrum.singular_values[:number]
    maps = [
        (f"direction {index + 1}: {100 * spectrum.variance_shares[index]:.0f}%", parts[:, index], None)
        for index in range(number)
    ]
    return grid_maps(maps, grid, largest=None)


def grid_maps(
    maps: Sequence[tuple[str, Tensor, tuple[int, int] | None]], grid: tuple[int, int], *, largest: float | None
) -> Figure:
    """Draws maps (title, values (H * W,), the cell to mark), three side by side."""
    side, between = 118, 28
    tall = side * min(max(grid[0] / grid[1], 0.3), 3.0)
    figure = new_figure(22 + math.ceil(len(maps) / 3) * (tall + 40))
    for index, (title, values, cell) in enumerate(maps):
        left = 20 + (index % 3) * (side + between)
        axes = axes_at(figure, left=left, top=22 + (index // 3) * (tall + 40), width=side, height=tall)
        scale = largest or values.abs().max().item() or 1.0
        image(axes, values.reshape(grid), scale, title=title)
        if cell is not None:
            axes.plot(cell[1], cell[0], "s", markerfacecolor="none", markeredgecolor=INK, markersize=5)
    return figure
