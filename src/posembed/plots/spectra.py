"""Figures of the directions that a table uses (its spectrum), and of the waves along them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.ticker import AutoLocator, MaxNLocator
from torch import Tensor

from posembed.arguments import checked
from posembed.plots.canvas import axes_for, draws, panels_for, title_of
from posembed.plots.grids import direction_maps
from posembed.plots.heat import MOST_DRAWN, heat
from posembed.plots.source import Rows, Source, named_rows, rows_of
from posembed.plots.style import DOTS, INK, MUTED, SERIES, TEXT, WIDTH, shortened
from posembed.plots.tables import Curves, draw_lines, line_axes, name_lines
from posembed.plots.ticks import whole_numbers
from posembed.settings import Count
from posembed.tables.spectrum import Spectrum, fourier_power

COMPONENTS = 6
WAVE = 0.7
"""A direction is a wave if this share of its power is within a quarter of one frequency."""
MARKED = 0.9
"""The share of the variance whose directions the figure counts."""
NO_VARIANCE = "its rows do not vary"
LEFT = 44
WIDE = WIDTH - LEFT - 8
EACH, GAP = 46, 24


@draws
def spectrum(
    table: Source | Mapping[str, Source],
    *,
    key: str | None = None,
    cumulative: bool = True,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws the cumulative share of the variance along the strongest directions of the rows (principal components).

    The steeper the curve, the fewer directions the rows use. A random table uses all directions about equally.

    Args:
        table: as in ``heatmap``, or several tables by name: one line each.
        key, ax, title: as in ``heatmap``.
        cumulative: False draws the singular values instead.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import torch
        >>> import posembed
        >>> tables = {"sinusoidal": posembed.tables.sinusoidal_table(128, 64), "random": torch.randn(128, 64)}
        >>> ax = posembed.plots.spectrum(tables)
    """
    tables = named_rows(table, key)
    flat = [
        f"{shortened(name)}: {NO_VARIANCE}" if name else NO_VARIANCE
        for name, rows in tables.items()
        if not rows.spectrum
    ]
    drawn = "cumulative variance share" if cumulative else "singular values"
    axes = line_axes(ax, tables, title, drawn, flat, height=175, x="direction, strongest first", grid="y")
    found = spectra_of(tables)
    if cumulative:
        name_lines(axes, draw_shares(axes, found))
    elif len(found) == 1:
        (alone,) = found.values()
        shown = directions_shown(found)
        axes.bar(range(1, shown + 1), alone.singular_values[:shown].tolist(), width=1.0, color=SERIES[0])
        axes.set_xlim(0.4, shown + 0.6)
    else:
        curves = {name: (1, each.singular_values[: directions_shown(found)]) for name, each in found.items()}
        draw_lines(axes, curves)
        name_lines(axes, curves)
    whole_numbers(axes.xaxis, 4)
    return axes


def spectra_of(tables: Mapping[str, Rows]) -> dict[str, Spectrum]:
    """Returns the spectra of the tables whose rows vary."""
    return {name: rows.spectrum for name, rows in tables.items() if rows.spectrum is not None}


def directions_shown(found: Mapping[str, Spectrum]) -> int:
    """Returns the number of directions to draw: twice the number that holds 99% of the variance of every table."""
    return max((max(2, min(len(s.singular_values), 2 * s.directions_for(0.99))) for s in found.values()), default=2)


def draw_shares(axes: Axes, found: Mapping[str, Spectrum]) -> Curves:
    """Draws cumulative shares of the variance, in percent. For a single table, marks where they reach 90%."""
    shown = directions_shown(found)
    curves = {name: (1, 100 * each.variance_shares.cumsum(0)[:shown]) for name, each in found.items()}
    draw_lines(axes, curves)
    if len(found) == 1:
        (alone,) = found.values()
        few = alone.directions_for(MARKED)
        axes.get_lines()[0].set_linewidth(1.8)
        axes.plot([0, few, few], [90, 90, 0], color=MUTED, linewidth=1, linestyle=DOTS)
        how: dict[str, Any] = {"textcoords": "offset points", "fontsize": TEXT, "color": INK}
        axes.annotate(f"90% in {few:,}", (few, 45), xytext=(5, 0), **how)
    axes.set_xlim(0.4, shown + 0.6)
    axes.set_ylim(0, 103)
    axes.yaxis.set_major_locator(AutoLocator())
    axes.yaxis.set_major_formatter("{x:.0f}%")
    whole_numbers(axes.xaxis, 4)
    return curves


@draws
def fourier(table: Source, *, key: str | None = None, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draws the power of principal components by frequency, in waves per table length. Each row of the figure is a
    component. One dark cell means a single wave, such as a sinusoid. Many pale cells mean that the component is not a
    wave.

    Args:
        table, key, ax, title: as in ``heatmap``.

    Returns:
        The Axes: frequency from left to right, up to 16 components from top to bottom.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.fourier(posembed.tables.sinusoidal_table(128, 64))
    """
    rows = rows_of(table, key)
    found = rows.spectrum
    notes = rows.notes if found else [*rows.notes, NO_VARIANCE]
    number = min(16, found.left_vectors.size(1)) if found else 1
    words: dict[str, Any] = {"x": "waves in the length of the table", "y": "direction"}
    drawn = title_of(title, "strength of each wave (square root of its share)", notes)
    axes = axes_for(ax, title=drawn, height=max(11 * number, 88), **words)
    if found is None:
        return heat(axes, rows.values[:0], 1.0)
    power = fourier_power(found.left_vectors[:, :number]).T
    strong = (power.amax(dim=0) > 0.01).nonzero().flatten().tolist() or [power.size(1)]
    bins = min(power.size(1), strong[-1] + 9)
    power = F.adaptive_max_pool1d(power[:, :bins], min(bins, MOST_DRAWN))
    return heat(axes, power.sqrt(), 1.0, extent=(-0.5, bins - 0.5, number + 0.5, 0.5))


@draws
def directions(
    table: Source,
    *,
    key: str | None = None,
    grid: tuple[int, int] | None = None,
    number: int = COMPONENTS,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws each row's coordinates along the strongest principal components: lines, or maps if there is a grid.

    A slope distinguishes distant rows, and waves distinguish neighbours. A spike marks a row with a direction of its
    own.

    Args:
        table, key, ax, title: as in ``heatmap``.
        grid: as in ``similarity``.
        number: the number of components.

    Returns:
        The Axes, whose ``child_axes`` are the lines or the maps.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.directions(posembed.tables.sinusoidal_table(128, 64), number=3)
    """
    rows, number = rows_of(table, key, grid), checked("number", number, Count)
    found = rows.spectrum
    if found is None:
        drawn = title_of(title, "strongest directions", [*rows.notes, NO_VARIANCE])
        return heat(axes_for(ax, title=drawn, height=88, x="row"), rows.values[:0], 1.0)
    if rows.grid is not None:
        return direction_maps(rows, number, ax=ax, title=title)
    number = min(number, found.left_vectors.size(1))
    panels = panels_for(
        ax, title=title_of(title, "strongest directions", rows.notes), height=44 + number * (EACH + GAP)
    )
    parts, power = found.left_vectors * found.singular_values, fourier_power(found.left_vectors)
    for index in range(number):
        is_last = index == number - 1
        name = f"direction {index + 1}: {100 * found.variance_shares[index]:.0f}% of the variance"
        length = wave_length(power[:, index], len(parts))
        name += "" if length is None else f", waves of about {length:.{0 if length > 10 else 1}f} rows"
        words = {"title": name, "x": "row" if is_last else "", "grid": "y"}
        axes = panels.at(left=LEFT, top=22 + index * (EACH + GAP), width=WIDE, height=EACH, **words)
        draw_lines(axes, {"": (rows.first, parts[:, index].where(rows.finite, float("nan")))})
        axes.axhline(0, color=MUTED, linewidth=0.6)
        axes.yaxis.set_major_locator(MaxNLocator(2))
        axes.tick_params(labelbottom=is_last)
    return panels.axes


def wave_length(power: Tensor, rows: int) -> float | None:
    """Returns the wavelength, in rows, of a direction with this power by frequency; None if it is not a wave. A single
    wave in all rows cannot be told from a slope or a step. Between two frequencies, amplitudes are in the inverse ratio
    of the distances to them."""
    peak = int(power.argmax())
    low, high = min(peak - 1, math.floor(0.75 * peak)), max(peak + 1, math.ceil(1.25 * peak))
    if peak < 2 or power[low : high + 1].sum() <= WAVE:
        return None
    beside = max((each for each in (peak - 1, peak + 1) if each < len(power)), key=lambda each: float(power[each]))
    amplitudes = power[[peak, beside]].sqrt()
    return rows / float((amplitudes * amplitudes.new_tensor([peak, beside])).sum() / amplitudes.sum())
