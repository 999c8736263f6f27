"""Attention weights by distance: how much weight a head gives to tokens at each distance."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_sums(weights: Tensor) -> Tensor:
    """Sums weights (B, H, L, L) over the batch and along each subdiagonal d. Returns (H, L) in float64 on the CPU."""
    summed = weights.double().sum(dim=0).cpu()
    return torch.stack([summed.diagonal(-d, dim1=1, dim2=2).sum(dim=1) for d in range(summed.size(-1))], dim=1)


def mean_by_distance(weights: Tensor) -> Tensor:
    """Returns the mean of weights (B, H, L, L) by distance: (H, L) float64 on the CPU.

    For causal weights, entry d is the mean over all tokens and the token d positions before them. Otherwise it is the
    mean over all pairs of tokens d positions apart, in both directions.
    """
    pairs = len(weights) * torch.arange(weights.size(-1), 0, -1)
    back = diagonal_sums(weights) / pairs
    if is_causal(weights):
        return back
    return (back + diagonal_sums(weights.mT) / pairs) / 2


def is_causal(weights: Tensor) -> bool:
    """Returns whether L > 1 and weights (..., L, L) are 0 for all later tokens."""
    return weights.size(-1) > 1 and not weights.triu(1).any()


def even_by_distance(length: int, window: int | None) -> Tensor:
    """Returns ``mean_by_distance``, (L,) float64, for a causal head that gives equal weight to every token it sees."""
    seen = torch.arange(1, length + 1, dtype=torch.float64).clamp(max=window or length)
    farthest_first = seen.reciprocal().flip(0).cumsum(0).flip(0) / torch.arange(length, 0, -1)
    return farthest_first.where(torch.arange(length) < (window or length), 0)
