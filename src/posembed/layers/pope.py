"""Polar position embedding (PoPE; Gopalakrishnan et al. 2025, arXiv:2509.10534).

RoPE rotates each pair of components by the position, but each pair also has its own angle, so content and position mix
in one number. PoPE takes the angle from the position alone: component c of a query or key has the magnitude
softplus(x_c) and the angle p theta_c (equations 3 and 4), and the score of query t and key s is
sum_c softplus(q_c) softplus(k_c) cos((s - t) theta_c + delta_c) (equation 6). Every component has its own frequency.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import Float, Shaped
from posembed.errors import ArgumentError
from posembed.layers.base import RotationEncoding, fill_
from posembed.settings import Count, Positive

Start = Literal["zero", "uniform"]


def polar_frequencies(head_dim: int, *, base: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """Returns theta_c = base^(-c/d) for c = 0 .. d - 1, in radians per position: float32 (d,)."""
    return base ** (-torch.arange(head_dim, dtype=torch.float32, device=device) / head_dim)


def polar(x: Float[Tensor, "... L d"], angles: Float[Tensor, "... L d"]) -> Float[Tensor, "... L two_d"]:
    """Returns softplus(x) cos(angles) and softplus(x) sin(angles), side by side: (..., L, 2 d), in x's dtype."""
    magnitudes = F.softplus(x.to(torch.promote_types(x.dtype, torch.float32)))
    return torch.cat((magnitudes * angles.cos(), magnitudes * angles.sin()), dim=-1).to(x.dtype)


class PolarEmbedding(RotationEncoding):
    """PoPE. Represents each component of queries and keys by a magnitude and an angle: (B, H, L, d) -> (B, H, L, 2 d).

    scaled_dot_product_attention divides the scores by the square root of the width, sqrt(2 d), but PoPE divides by
    sqrt(d), so this layer multiplies the queries by sqrt(2). Attention with an explicit scale should use 1 / sqrt(2 d).

    Args:
        head_dim: d, the width of one head.
        heads: the number of key heads H. Each has learned phases ``delta`` (d,), clamped to [-2 pi, 0] as in the paper.
        base: the base of the frequencies; 10,000 in the paper.
        delta_init: "zero", the paper's choice for lengths beyond the training length, or "uniform" in [-2 pi, 0].

    Raises:
        ArgumentError: a width or number of heads below 1, or an unknown delta_init.

    Examples:
        >>> import torch
        >>> from posembed.layers import PolarEmbedding
        >>> pope = PolarEmbedding(head_dim=16, heads=4)
        >>> q, k = pope(*torch.randn(2, 1, 4, 10, 16))
        >>> q.shape  # twice as wide
        torch.Size([1, 4, 10, 32])
    """

    def __init__(self, *, head_dim: Count, heads: Count, base: Positive = 10000.0, delta_init: Start = "zero") -> None:
        super().__init__()
        self.head_dim, self.heads, self.base, self.delta_init = head_dim, heads, base, delta_init
        self.delta = nn.Parameter(torch.empty(heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        delta = torch.zeros(self.heads, self.head_dim)
        fill_(self.delta, delta if self.delta_init == "zero" else delta.uniform_(-2 * math.pi, 0.0))

    def angles(self, position_ids: Shaped[Tensor, "... L"]) -> Tensor:
        """Returns float32 angles that broadcast over heads: ids (L,) -> (1, L, d); ids (B, L) -> (B, 1, L, d)."""
        frequencies = polar_frequencies(self.head_dim, base=self.base, device=position_ids.device)
        return (position_ids.unsqueeze(-1).float() * frequencies).unsqueeze(-3)

    def turned(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, text_length: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if k.shape[-3] != self.heads:
            raise ArgumentError(f"k must be (B, H={self.heads}, L, d), one delta per head; got {tuple(k.shape)}")
        delta = self.delta.float()
        # Delta starts at a limit, where clamp has no gradient from PyTorch 2.14 on.
        delta = delta.masked_fill(delta > 0.0, 0.0).masked_fill(delta < -2 * math.pi, -2 * math.pi).unsqueeze(-2)
        return polar(q, self.angles(q_positions)) * math.sqrt(2), polar(k, self.angles(k_positions) + delta)
