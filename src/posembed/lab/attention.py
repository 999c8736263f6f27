"""Attention by distance: the share of its attention that each head gives to the tokens at each distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posembed.lab.model import PositionedModel
from posembed.nn import Attention
from posembed.nn.by_distance import diagonal_sums

SEQUENCES = 32
WEIGHTS_AT_ONCE = 2**24
"""The number of attention weights of one layer to hold in memory at a time: 64 MB."""


@torch.no_grad()
def by_distance(model: PositionedModel, ids: Tensor, device: torch.device) -> Tensor:
    """Returns the mean attention weight at each distance, (layers, H, L) float64 on the CPU, for ids (N, L).

    Entry d averages over all tokens, in all sequences, with a token d positions back. Weights beyond a window are 0.
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
