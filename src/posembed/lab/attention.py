"""How each attention head spreads its attention over distances, or over positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posembed.lab.model import PositionedModel
from posembed.nn import Attention
from posembed.nn.by_distance import diagonal_sums

SEQUENCES = 32
WEIGHTS_AT_ONCE = 2**24
"""About how many attention weights of one layer to compute at a time: 64 MiB in float32."""


def by_distance(model: PositionedModel, ids: Tensor, device: torch.device) -> Tensor:
    """Returns the mean attention weights by distance (layers, H, L) for token ids (N, L), in float64 on the CPU.

    Entry d is the mean weight that a token gives to the token d positions back. It is 0 beyond a window.
    """
    length = ids.size(1)
    return _sums(model, ids, device, diagonal_sums) / (len(ids) * torch.arange(length, 0, -1))


def received(model: PositionedModel, ids: Tensor, device: torch.device) -> Tensor:
    """Returns the share of all attention that each position receives (layers, H, L) for token ids (N, L), in float64 on
    the CPU. The shares of a head sum to 1."""
    sums = _sums(model, ids, device, lambda weights: weights.double().sum(dim=(0, 2)).cpu())
    return sums / ids.numel()


@torch.no_grad()
def _sums(model: PositionedModel, ids: Tensor, device: torch.device, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies ``of`` to the weights (B, H, L, L) of each layer. Returns its results, summed over ids (layers, H, L)."""
    sums: list[Tensor] = []
    length = ids.size(1)
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    def look(attention: Attention, inputs: tuple[Tensor], keywords: dict[str, Any]) -> None:
        sums.append(of(attention.weights(*inputs, positions=keywords["positions"])))

    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    try:
        for part in ids.split(max(WEIGHTS_AT_ONCE // (layers[0].heads * length**2), 1)):
            model(part.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([torch.stack(sums[layer :: len(layers)]).sum(dim=0) for layer in range(len(layers))])
