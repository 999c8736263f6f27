"""Heat maps: blue below zero, white at zero, red above, grey where there is no number."""

from __future__ import annotations

import math

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from torch import Tensor

from posembed.plots.canvas import dress, fill_axes
from posembed.plots.style import RULE
from posembed.plots.ticks import fix_ticks, whole_numbers
from posembed.tables.rows import extreme_scale

MOST_DRAWN = 512
"""The most rows or columns of a figure: no screen shows more."""


def thinned(rows: Tensor, most: int = MOST_DRAWN) -> tuple[Tensor, int]:
    """Returns every k-th row and k, the smallest step that gives at most ``most`` rows."""
    step = max(math.ceil(len(rows) / most), 1)
    return rows[::step], step


def of_every(step: int) -> list[str]:
    """Returns the note that only one row in ``step`` is drawn; empty if all are."""
    return [f"1 row in {step}"] if step > 1 else []


def strongest(values: Tensor) -> float:
    """Returns the value of the strongest red. Only the largest 0.5% are above it: they would turn the others white."""
    found = values[values.isfinite()].abs()
    sample, _ = thinned(found, most=200_000)
    return (sample.quantile(0.995).item() or found.max().item() or 1.0) if len(found) else 1.0


def heat(
    axes: Axes,
    values: Tensor,
    largest: float,
    *,
    extent: tuple[float, float, float, float] | None = None,
    ticks: int = 4,
) -> Axes:
    """Draws values (H, W) as colours.

    largest: the value of the strongest red. extent: the values of the axes at (left, right, bottom, top). ticks: the
    most ticks per axis.
    """
    if values.numel():
        scale = extreme_scale(values.nan_to_num(0, 0, 0))
        values, largest = values / scale, largest / scale.item()
        colours = colormaps["RdBu_r"].with_extremes(bad=RULE)
        axes.imshow(
            values.numpy(),
            aspect="auto",
            interpolation="nearest",
            origin="upper",
            extent=extent,
            cmap=colours,
            vmin=-largest,
            vmax=largest,
        )
    for axis in (axes.xaxis, axes.yaxis):
        if ticks and values.numel():
            whole_numbers(axis, ticks)
        else:
            axis.set_major_locator(NullLocator())
    return axes


def scale_beside(axes: Axes, *, gap: float, width: float) -> None:
    """Draws the scale of a map of cosines at its right: colours from -1 to 1. gap, width: shares of the map's width."""
    fill_axes(axes)
    scale = dress(axes.inset_axes((1 + gap, 0, width, 1)))
    heat(scale, torch.linspace(1, -1, 101)[:, None], 1.0, extent=(0, 1, -1, 1), ticks=0)
    scale.yaxis.tick_right()
    fix_ticks(scale.yaxis, (-1, -0.5, 0, 0.5, 1))
    for spine in scale.spines.values():
        spine.set_visible(False)
