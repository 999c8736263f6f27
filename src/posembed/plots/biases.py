"""Figures of attention biases: what each head adds to the scores by the difference of two positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posembed.plots.canvas import page
from posembed.plots.heat import heat, strongest
from posembed.plots.style import INK, MUTED, TEXT, WIDTH, styles
from posembed.plots.ticks import fix_ticks, label_line_ends, whole_numbers

if TYPE_CHECKING:
    from posembed.checkpoints.buckets import Bucket

MOST_MAPS = 12
MOST_NAMED = 6
"""More heads than this are drawn as thin lines without names, around their mean."""
TOP = 16
LEFT, ROOM, LINEAR = 44, 66, 4


def bias_maps(biases: Tensor, height: Tensor, width: Tensor) -> Figure:
    """Draws each of the first twelve heads' biases by height and width difference, three maps side by side.

    biases: (N, H), with N = len(height) * len(width). height, width: the differences along each axis.
    """
    heads = min(biases.shape[1], MOST_MAPS)
    side, between, above = 106, 32, 24
    tall = side * min(max(len(height) / len(width), 0.3), 3.0)
    panels = page(TOP + math.ceil(heads / 3) * (tall + above + 22) + 8)
    largest = strongest(biases)
    panels.heading(f"strongest colours: ± {largest:.2g}", left=30, fontsize=TEXT - 1, color=MUTED)
    right, bottom = int(width[-1]) + 0.5, int(height[-1]) + 0.5
    extent = (int(width[0]) - 0.5, right, bottom, int(height[0]) - 0.5)
    for head in range(heads):
        left, top = 30 + (head % 3) * (side + between), TOP + above + (head // 3) * (tall + above + 22)
        title = f"head {head}: mean {biases[:, head].mean().item():.2g}"
        axes = panels.at(left=left, top=top, width=side, height=tall, title=title)
        heat(axes, biases[:, head].reshape(len(height), len(width)), largest, extent=extent)
    return panels.axes


def bias_lines(biases: Tensor, differences: Tensor) -> Figure:
    """Draws a line for each head. biases: (N, H). differences: (N,)."""
    panels = page(200)
    axes = panels.at(left=LEFT, top=20, width=WIDTH - LEFT - ROOM, height=136, x="difference", grid="y")
    draw_heads(axes, differences.double(), biases)
    whole_numbers(axes.xaxis, 6)
    return panels.axes


def bucket_lines(buckets: Sequence[Bucket], biases: Tensor) -> Figure:
    """Draws the row that each difference reads, and below it each head's bias. biases: (N, H), by row."""
    edges = [bucket.last for bucket in buckets if bucket.last is not None]
    starts = [bucket.first for bucket in buckets if bucket.first is not None]
    first, last = (round(1.3 * limit) for limit in (edges[0], max(starts[-1], 4)))
    differences = torch.arange(min(first, -4), last + 1)
    rows = torch.tensor(
        [
            next(
                bucket.row
                for bucket in buckets
                if (bucket.first is None or bucket.first <= at) and (bucket.last is None or at <= bucket.last)
            )
            for at in differences.tolist()
        ]
    )
    panels = page(330)
    where = {"left": LEFT, "width": WIDTH - LEFT - ROOM}
    above = panels.at(top=20, height=104, title="row of the table", grid="y", **where)
    below = panels.at(top=156, height=126, title="bias", x="difference", grid="y", **where)
    above.step(differences.tolist(), rows.tolist(), where="mid", color=INK, linewidth=1.1)
    draw_heads(below, differences.double(), biases[rows], steps=True)
    for axes in (above, below):
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=1)
        axes.set_xlim(differences[0].item(), differences[-1].item())
        shown = [
            at for at in (-512, -128, -32, -8, -2, 0, 2, 8, 32, 128, 512) if differences[0] <= at <= differences[-1]
        ]
        fix_ticks(axes.xaxis, shown)
        axes.xaxis.minorticks_off()
    whole_numbers(above.yaxis, 4)
    return panels.axes


def draw_heads(axes: Axes, differences: Tensor, biases: Tensor, *, steps: bool = False) -> None:
    """Draws biases (N, H) by difference: named lines for few heads, thin lines and their mean for many."""
    few = biases.shape[1] <= MOST_NAMED
    looks, ends = styles([f"head {head}" for head in range(biases.shape[1])]) if few else {}, []
    how: dict[str, Any] = {"drawstyle": "steps-mid"} if steps else {}
    for head, values in enumerate(biases.T):
        look = looks.get(f"head {head}")
        colour, width = (MUTED, 0.5) if look is None else (look.colour, 1.2)
        axes.plot(differences.tolist(), values.tolist(), color=colour, linewidth=width, **how)
        if look is not None:
            ends.append((values[-1].item(), f"head {head}", look.colour))
    if not few:
        mean = biases.mean(dim=1)
        axes.plot(differences.tolist(), mean.tolist(), color=INK, linewidth=1.4, **how)
        ends.append((mean[-1].item(), "mean", INK))
    axes.set_xlim(differences[0].item(), differences[-1].item())
    axes.yaxis.set_major_locator(MaxNLocator(4))
    label_line_ends(axes, ends)


def layer_line(tables: Sequence[Tensor]) -> Figure:
    panels = page(160)
    where = {"left": LEFT, "top": 20, "width": WIDTH - LEFT - 20, "height": 96}
    axes = panels.at(title="root mean square", x="layer", grid="y", **where)
    scales = [table.double().square().mean().sqrt().item() for table in tables]
    axes.plot(range(len(scales)), scales, color=INK, linewidth=1.1, marker="o", markersize=4)
    axes.set_ylim(0, 1.15 * max(scales) or 1.0)
    axes.set_xlim(-0.5, len(scales) - 0.5)
    whole_numbers(axes.xaxis, 6)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    return panels.axes
