"""Attention with linear biases (ALiBi; Press, Smith and Lewis 2021, arXiv:2108.12409).

Each head subtracts its slope times the distance from the scores, after the scores' division by sqrt(d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding


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
    return torch.tensor(slopes + finer[0::2][: heads - power], device=device)


def alibi_bias(slopes: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """-slope * |i - j|: slopes (H,), positions (L,) or (B, L) -> (H, Lq, Lk) or (B, H, Lq, Lk), float32."""
    distance = (q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)).abs()
    return -slopes.view(-1, 1, 1) * distance.unsqueeze(-3)


class Alibi(PositionEncoding):
    """ALiBi for any number of heads. Nothing is learned; no position is too far.

    The bias is symmetric in the distance, so it serves an encoder as well; a decoder's mask hides the future.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        alibi_slopes(heads)  # refuses no heads here rather than in forward

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        # Computed as needed: a buffer of slopes would be cast with the model, and lost on the meta device.
        slopes = alibi_slopes(self.heads, device=q_positions.device)
        return alibi_bias(slopes, q_positions, k_positions)

    def forward(self, q_length: int, k_length: int | None = None, *, device: torch.device | None = None) -> Tensor:
        """The bias (H, Lq, Lk), float32, of the last q_length of k_length tokens, as in decoding with a cache."""
        k_length = q_length if k_length is None else k_length
        if q_length > k_length:
            raise ArgumentError(
                f"k_length counts all tokens, so it is at least q_length={q_length}, got {k_length}"
            )
        positions = torch.arange(k_length, device=device)
        return self.at_scores(positions[k_length - q_length :], positions)

    def extra_repr(self) -> str:
        return f"{self.heads}"
