"""Attention with linear biases (ALiBi; Press, Smith and Lewis 2021, arXiv:2108.12409).

Each head subtracts its slope times the distance from the scores, after the scores' division by sqrt(d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.layers.score_bias import Formula, ScoreBias


def alibi_slopes(heads: int, *, device: torch.device | None = None) -> Tensor:
    """One slope a head, float32 (H,).

    A power of two: 2^(-8h/H), h = 1 .. H. Otherwise, as in the authors' code, the slopes of the largest power
    of two c below H, then every second slope of 2c.
    """
    if heads < 1:
        raise ArgumentError(f"ALiBi needs at least one head, got {heads}")
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    finer = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power + 1)]
    return torch.tensor(slopes + finer[0::2][: heads - power], dtype=torch.float32, device=device)


class Alibi(ScoreBias):
    """ALiBi for any number of heads. Nothing is learned; no position is too far.

    The bias is symmetric in the distance, so it serves an encoder as well; a decoder's mask hides the future.
    """

    of_distance_alone = True

    def formula(self, device: torch.device) -> Formula:
        # Computed as needed: a buffer of slopes would be cast with the model, and lost on the meta device.
        slopes = alibi_slopes(self.heads, device=device)
        return lambda head, q, k: -slopes[head] * (q - k).abs()
