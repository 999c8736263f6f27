"""The mean attention weight of the heads of a model by distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter
from torch import Tensor

from posembed.arguments import checked
from posembed.errors import ArgumentError
from posembed.nn.by_distance import even_by_distance, is_causal, mean_by_distance
from posembed.plots.canvas import draws, panels_for
from posembed.plots.style import DOTS, MUTED, SERIES, WIDTH
from posembed.plots.ticks import fix_ticks
from posembed.settings import Count

LEAST_WEIGHT = 1e-4
"""Smaller weights are not drawn."""
LEFT, RIGHT, TALL, BETWEEN, ABOVE = 48, 2, 110, 12, 30


@draws
def attention_by_distance(
    weights: Tensor | Sequence[Tensor],
    *,
    window: int | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws the mean attention weight by distance: one panel per layer, one line per head.

    Both axes are logarithmic. The dotted line shows a head that attends equally to every token it sees.

    Args:
        weights: weights (B, H, L, L) of each layer, such as ``model(ids, output_attentions=True).attentions`` of a
            model of transformers, for texts without padding; or their means by distance, (layers, H, L).
        window: the causal window of the model: the number of tokens that each token sees, itself included.
        ax: the Axes that holds the panels. None means a new figure.
        title: as in ``heatmap``.

    Returns:
        The Axes, whose ``child_axes`` are the panels.

    Raises:
        ArgumentError: the weights have other shapes or negative values, ``window`` is not a whole number above 0, or
            ``ax`` is not a matplotlib Axes with x and y.

    Examples:
        >>> import torch
        >>> import posembed
        >>> weights = torch.rand(2, 4, 16, 16).tril()  # one layer: B = 2, H = 4, L = 16
        >>> ax = posembed.plots.attention_by_distance([weights / weights.sum(dim=-1, keepdim=True)])
    """
    window = checked("window", window, Count | None)
    means, even, away = means_of(weights, window)
    layers, _, length = means.shape
    farthest = max(min(length, window or length) - 1, 1)
    columns = min(layers, 3)
    wide = (WIDTH - LEFT - RIGHT - (columns - 1) * BETWEEN) / columns
    height = -(-layers // columns) * (TALL + ABOVE) + 48
    panels = panels_for(ax, title=title or "", height=height)
    for layer in range(layers):
        down, across = divmod(layer, columns)
        left, top = LEFT + across * (wide + BETWEEN), ABOVE + down * (TALL + ABOVE)
        axes = panels.at(left=left, top=top, width=wide, height=TALL, title=f"layer {layer + 1}", grid="y")
        axes.plot(drawn(even), color=MUTED, linewidth=1, linestyle=DOTS)
        for head, curve in enumerate(means[layer]):
            axes.plot(drawn(curve), color=SERIES[head % len(SERIES)], linewidth=1.3, alpha=0.9)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("log")
        axes.set_xlim(0, farthest)
        axes.set_ylim(LEAST_WEIGHT, 1)
        fix_ticks(axes.xaxis, [place for place in (0, 1, 4, 16, 64, 256, 1024, 4096) if place <= farthest])
        fix_ticks(axes.yaxis, [1e-4, 1e-2, 1])
        axes.yaxis.set_major_formatter(FixedFormatter([".01%", "1%", "100%"] if across == 0 else [""] * 3))
    panels.heading(f"tokens {away} (log scale)", left=LEFT, top=height - 24)
    return panels.axes


def means_of(weights: Tensor | Sequence[Tensor], window: int | None) -> tuple[Tensor, Tensor, str]:
    """Returns mean weights by distance (layers, H, L), those of a head with even weights (L,), and "back" or "away"."""
    layers = [weights] if isinstance(weights, Tensor) or not isinstance(weights, Sequence) else list(weights)
    for one in layers:
        if isinstance(one, Tensor):
            require_weights(one)
    if isinstance(weights, Tensor) and weights.dim() == 3 and weights.size(1) != weights.size(2):
        return weights.detach().cpu().double(), even_by_distance(weights.size(2), window), "back"
    shapes = {tuple(one.shape[1:]) if isinstance(one, Tensor) and one.dim() == 4 else None for one in layers}
    if len(shapes) != 1 or None in shapes or layers[0].size(2) != layers[0].size(3):
        given = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in layers[:3]]
        raise ArgumentError(
            f"expected attention weights (B, H, L, L) of each layer, or their means by distance (layers, H, L); got "
            f"{', '.join(map(str, given)) or 'nothing'}. Models of transformers return them with "
            'output_attentions=True if they were loaded with attn_implementation="eager"'
        )
    means = torch.stack([mean_by_distance(one.detach()) for one in layers])
    length = means.size(2)
    if is_causal(layers[0]):
        return means, even_by_distance(length, window), "back"
    return means, torch.full((length,), 1 / length, dtype=torch.float64), "away"


def require_weights(weights: Tensor) -> None:
    """Raises ArgumentError for a tensor that cannot hold attention weights, of whatever shape."""
    wanted = "expected attention weights, floats from 0 to 1"
    if weights.is_meta or not weights.is_floating_point() or not weights.numel():
        kind = "a tensor on the meta device" if weights.is_meta else f"{weights.dtype} of shape {tuple(weights.shape)}"
        raise ArgumentError(f"{wanted}; got {kind}")
    if weights.min() < 0:
        raise ArgumentError(f"{wanted}; got negative values. Apply the softmax to scores")
    if weights.isnan().all():
        raise ArgumentError(f"{wanted}; got NaN alone")


def drawn(curve: Tensor) -> list[float]:
    return curve.double().where(curve >= LEAST_WEIGHT, float("nan")).tolist()
