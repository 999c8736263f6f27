"""Attention with linear biases (ALiBi; Press, Smith and Lewis 2021, arXiv:2108.12409).

Each head subtracts its slope times the distance from the scores, after the scores are divided by sqrt(d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.layers.score_bias import Formula, ScoreBias
from posembed.settings import Count, Positive


def alibi_slopes(heads: int, *, device: torch.device | None = None) -> Tensor:
    """Returns one slope per head, float32 (H,).

    For a power of two H the slopes are 2^(-8h/H), h = 1 .. H. Otherwise, as in the authors' code, they are the slopes
    for c heads, then every second slope for 2c heads, where c is the largest power of two below H.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    finer = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power + 1)]
    return torch.tensor(slopes + finer[0::2][: heads - power], dtype=torch.float32, device=device)


class Alibi(ScoreBias):
    """ALiBi (arXiv:2108.12409) for any number of heads. It has no learned values and reads texts of any length.

    The bias, -slope * distance, is symmetric, so it also works in encoders. In a decoder, the mask hides the future.

    Args:
        heads: the number of heads H.
        scale: the factor on all slopes. With L / M, a model trained at length L reads a text of length M as if the text
            had L tokens (Al-Khateeb et al. 2023, arXiv:2310.13017).

    Raises:
        ArgumentError: no head, or a scale that is not above 0.

    Examples:
        >>> from posembed import Alibi
        >>> bias = Alibi(heads=8)(5)  # (H, L, L), to add to the scores of 5 tokens
        >>> bias[0, 4].tolist()  # head 1, the last query
        [-2.0, -1.5, -1.0, -0.5, -0.0]
    """

    of_distance_alone = True

    def __init__(self, heads: Count, *, scale: Positive = 1.0) -> None:
        super().__init__(heads)
        self.scale = scale

    def formula(self, device: torch.device) -> Formula:
        # Recomputed each time: a buffer of slopes would be cast with the model, and lost on the meta device.
        slopes = self.scale * alibi_slopes(self.heads, device=device)
        return lambda head, q, k: -slopes[head] * (q - k).abs()
