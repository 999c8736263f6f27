"""Attention by distance: the mean weight of a token some tokens back, one panel per layer, one line per head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter
from torch import Tensor

from posembed.lab.model.looking import looking_everywhere
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import load_attention
from posembed.report.drawing import INK, MUTED, RULE, SERIES, TEXT, WIDTH, axes_at, fix_ticks, new_figure
from posembed.report.learned.tables import first_kept
from posembed.report.page import Picture, Section, picture

COLUMNS = 3
HOW_TO_READ = (
    "The mean attention weight by distance, on held-out text at the training length: one panel per layer, one line per "
    "head. Dashed: a head that weighs everything it sees equally."
)
LEAST = 1e-4
"""Smaller weights are not drawn."""


def attention_figure(weights: Tensor, *, window: int | None) -> Figure:
    """Draws weights (layers, H, L) on logarithmic axes. Dashed: a head that weighs everything it sees equally."""
    layers, _, length = weights.shape
    wide, tall, between, above = 122, 110, 12, 30
    down = -(-layers // COLUMNS)
    height = down * (tall + above) + 48
    figure = new_figure(height)
    everywhere = looking_everywhere(length, window)
    farthest = min(length, window or length) - 1
    for layer in range(layers):
        across, line = layer % COLUMNS, layer // COLUMNS
        left, top = 48 + across * (wide + between), above + line * (tall + above)
        axes = axes_at(figure, left=left, top=top, width=wide, height=tall)
        axes.set_title(f"layer {layer + 1}", loc="left", fontsize=TEXT - 1, color=INK, pad=5)
        axes.plot(_drawn(everywhere), color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
        for head, curve in enumerate(weights[layer]):
            axes.plot(_drawn(curve), color=SERIES[head % len(SERIES)], linewidth=1.3, alpha=0.9)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("log")
        axes.set_xlim(0, max(farthest, 1))
        axes.set_ylim(LEAST, 1)
        fix_ticks(axes.xaxis, [place for place in (0, 1, 4, 16, 64, 256, 1024, 4096) if place <= farthest])
        fix_ticks(axes.yaxis, [1e-4, 1e-2, 1])
        axes.yaxis.set_major_formatter(FixedFormatter([".01%", "1%", "100%"] if across == 0 else [""] * 3))
        axes.grid(axis="y", color=RULE, linewidth=0.5)
    figure.text(48 / WIDTH, 10 / height, "tokens back (log scale)", fontsize=TEXT, color=INK)
    return figure


def attention_section(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Section:
    return Section("Where the heads look", tuple(attention_pictures(runs, results)), says=HOW_TO_READ)


def attention_pictures(runs: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterator[Picture]:
    """Yields one picture per name, of its first successful run."""
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
    """Returns a sentence on the largest weight beyond the token itself, in weights (layers, H, L)."""
    if weights.size(2) < 2:
        return ""
    layer, head, back = (int(i) for i in torch.unravel_index(weights[..., 1:].argmax(), weights[..., 1:].shape))
    where = "the token before" if back == 0 else f"the token {back + 1:,} back"
    share = weights[layer, head, back + 1].item()
    return f"The sharpest is head {head + 1} of layer {layer + 1}: {share:.0%} of its attention is on {where}."


def _drawn(curve: Tensor) -> list[float]:
    return curve.double().where(curve >= LEAST, float("nan")).tolist()
