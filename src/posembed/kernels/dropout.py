"""The elements that dropout keeps, recomputed from a seed whenever they are needed."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 1 << 16
"""The probability of dropout is a multiple of 1 / STEPS: 16 random bits per element, four elements per draw."""


def rounded(dropout: float) -> float:
    """Returns the nearest probability that can be drawn."""
    return round(dropout * STEPS) / STEPS


def generator_of(seed: Tensor) -> torch.Generator:
    """Makes a generator that starts from a seed, int64 (1,)."""
    return torch.Generator(seed.device).manual_seed(int(seed))


def draw_keep(generator: torch.Generator, shape: tuple[int, int, int], dropout: float, dtype: torch.dtype) -> Tensor:
    """Draws the next mask (B, L, D): 1 for a kept element, 0 otherwise. (Products with bool are far slower.)

    Rows are drawn in order, so the mask of each part of a lookup is that part of the whole mask.
    """
    *rows, dim = shape
    keep = torch.empty(shape, dtype=dtype, device=generator.device)
    draws = torch.empty((*rows, -(-dim // 4)), dtype=torch.int64, device=generator.device)
    draws.random_(-(1 << 63), None, generator=generator)  # all 64 bits
    if dropout == 1:
        return keep.zero_()
    return torch.ge(draws.view(torch.int16)[..., :dim], round(dropout * STEPS) - STEPS // 2, out=keep)
