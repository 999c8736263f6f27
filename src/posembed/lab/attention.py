"""Attention by distance: the share of its attention that each head gives to the tokens at each distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posembed.lab.model import PositionedModel
from posembed.nn import Attention

SEQUENCES = 32
WEIGHTS_AT_ONCE = 2**24
"""About how many attention weights of one layer to compute at a time: 64 MiB in float32."""


@torch.no_grad()
def by_distance(model: PositionedModel, ids: Tensor, device: torch.device) -> Tensor:
    """Returns the mean attention weights by distance (layers, H, L) for token ids (N, L), in float64 on the CPU.

    Entry d is the mean weight of the token d positions back, over all tokens that have one. It is 0 beyond a window.
    """
    sums: list[Tensor] = []
    length = ids.size(1)
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    def look(attention: Attention, inputs: tuple[Tensor], keywords: dict[str, Any]) -> None:
        sums.append(diagonal_sums(attention.weights(*inputs, positions=keywords["positions"])))

    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    try:
        for part in ids.split(max(WEIGHTS_AT_ONCE // (layers[0].heads * length**2), 1)):
            model(part.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    total = torch.stack([torch.stack(sums[layer :: len(layers)]).sum(dim=0) for layer in range(len(layers))])
    return total / (len(ids) * torch.arange(length, 0, -1))


def diagonal_sums(weights: Tensor) -> Tensor:
    """Sums weights (B, H, L, L) over the batch and along each subdiagonal d. Returns (H, L) in float64 on the CPU."""
    summed = weights.double().sum(dim=0).cpu()
    return torch.stack([summed.diagonal(-d, dim1=1, dim2=2).sum(dim=1) for d in range(summed.size(-1))], dim=1)


def looking_everywhere(length: int, window: int | None) -> Tensor:
    """Returns the mean weights by distance (L,) of a head that weights all tokens in its window equally, in float64."""
    seen = torch.arange(1, length + 1, dtype=torch.float64).clamp(max=window or length)
    farthest_first = seen.reciprocal().flip(0).cumsum(0).flip(0) / torch.arange(length, 0, -1)
    return farthest_first.where(torch.arange(length) < (window or length), 0)
