"""Maps of rows that are the cells of an image: which are similar, and what the strongest directions encode."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from matplotlib.axes import Axes
from torch import Tensor

from posembed.plots.canvas import panels_for, title_of
from posembed.plots.heat import heat
from posembed.plots.source import Rows
from posembed.plots.style import INK

SIDE, BETWEEN, ABOVE, BELOW = 118, 28, 22, 18


def similarity_maps(rows: Rows, *, ax: Axes | None, title: str | None) -> Axes:
    """Draws nine maps of the grid: the cosine of every cell to one cell. The nine cells lie 3 x 3 across the grid."""
    assert rows.grid is not None
    high, wide = rows.grid
    unit = F.normalize(rows.measured, dim=1)
    chosen = [(round(r * (high - 1)), round(c * (wide - 1))) for r in (0.1, 0.5, 0.9) for c in (0.1, 0.5, 0.9)]
    maps = [(f"row {r}, column {c}", unit @ unit[r * wide + c], 1.0) for r, c in chosen]
    axes, drawn = draw_maps(maps, rows, ax=ax, title=title_of(title, "cosine to the marked cell", rows.notes))
    for one, (row, column) in zip(drawn, chosen, strict=True):
        one.plot(column, row, "s", markerfacecolor="none", markeredgecolor=INK, markersize=5)
    return axes


def direction_maps(rows: Rows, number: int, *, ax: Axes | None, title: str | None) -> Axes:
    """Draws each cell's coordinate along the strongest directions."""
    spectrum = rows.spectrum
    assert spectrum is not None
    shares, parts = spectrum.variance_shares, spectrum.left_vectors * spectrum.singular_values
    maps = [
        (f"direction {index + 1}: {100 * shares[index]:.0f}%", part, part.abs().max().item() or 1.0)
        for index, part in enumerate(parts.T[:number])
    ]
    return draw_maps(maps, rows, ax=ax, title=title_of(title, "strongest directions", rows.notes))[0]


def draw_maps(
    maps: Sequence[tuple[str, Tensor, float]], rows: Rows, *, ax: Axes | None, title: str
) -> tuple[Axes, list[Axes]]:
    """Draws maps (title, values (H * W,), the value of the strongest red), three side by side."""
    assert rows.grid is not None
    tall = SIDE * min(max(rows.grid[0] / rows.grid[1], 0.3), 3.0)
    panels = panels_for(ax, title=title, height=ABOVE + math.ceil(len(maps) / 3) * (tall + ABOVE + BELOW))
    drawn = []
    for index, (name, values, largest) in enumerate(maps):
        left, top = 20 + (index % 3) * (SIDE + BETWEEN), ABOVE + (index // 3) * (tall + ABOVE + BELOW)
        one = panels.at(left=left, top=top, width=SIDE, height=tall, title=name)
        known = values.where(rows.finite, float("nan"))
        drawn.append(heat(one, known.reshape(rows.grid), largest))
    return panels.axes, drawn
