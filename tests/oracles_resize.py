"""Interpolation as float64 matrices (new, old), written from the definitions and not from PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def cubic(x: float, a: float) -> float:
    """Keys' cubic convolution kernel (1981) with the free constant a."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def sampled(old: int, places: list[float], kind: str) -> Tensor:
    """Row k reads the old rows at places[k]; outside the table stands its nearest row. Cubic constant -.75."""
    weights = torch.zeros(len(places), old, dtype=torch.float64)
    for k, place in enumerate(places):
        for j in range(math.floor(place) - 1, math.floor(place) + 3):
            weight = triangle(place - j) if kind == "linear" else cubic(place - j, -0.75)
            weights[k, min(max(j, 0), old - 1)] += weight
    return weights


def stretched(old: int, new: int, kind: str, *, align_corners: bool = False) -> Tensor:
    if align_corners:
        return sampled(old, [k * (old - 1) / max(new - 1, 1) for k in range(new)], kind)
    return sampled(old, [(k + 0.5) * old / new - 0.5 for k in range(new)], kind)


def antialiased(old: int, new: int, kind: str) -> Tensor:
    """The kernel as wide as a new row, over the old rows there are, its weights summing to 1. Constant -.5."""
    width = max(old / new, 1.0)
    weights = torch.zeros(new, old, dtype=torch.float64)
    for k in range(new):
        for j in range(old):
            x = (j + 0.5 - (k + 0.5) * old / new) / width
            weights[k, j] = triangle(x) if kind == "linear" else cubic(x, -0.5)
    return weights / weights.sum(dim=1, keepdim=True)
