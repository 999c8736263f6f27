"""CoPE, contextual position encoding (Golovneva et al. 2024, arXiv:2405.18719, section 4): learned rows read at
positions that count tokens by their content.

    g_ij = sigmoid(q_i k_j / sqrt(d))                 whether query i counts key j
    p_ij = g_ij + g_i(j+1) + ... + g_ii               the position of key j, seen from query i; at most N - 1
    score(i, j) = q_i k_j / sqrt(d) + q_i e[p_ij]     where e is interpolated linearly between its rows

As in the authors' code, the gates read the same scores as the softmax, q_i e[p] is not divided by sqrt(d), the heads of
a layer share one table, and its rows start at 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posembed.arguments import Float
from posembed.layers.base import Content, PositionEncoding, fill_
from posembed.layers.score_bias import wide
from posembed.settings import Count, NotNegative


def contents(q: Tensor, k: Tensor) -> Float[Tensor, "B H Lq Lk"]:
    """Returns q k / sqrt(d) for q (B, H, Lq, d) and k (B, Hk, Lk, d), in float32 or wider."""
    return wide(q) @ wide(k).repeat_interleave(q.size(1) // k.size(1), dim=1).mT / math.sqrt(q.size(-1))


class Cope(PositionEncoding):
    """CoPE (arXiv:2405.18719) for decoders: positions count tokens by content. Needs several tensors (B, H, L, L).

    Args:
        head_dim: the width d of a head.
        max_len: N, the number of rows. Keys at positions past N - 1 share the last row. The authors' language models
            have 64 rows for texts of 1,024 tokens.
        std: the standard deviation of the initial rows; 0 in the authors' code.

    The state dict holds ``weight`` (N, d).

    Raises:
        ArgumentError: a size below 1.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="cope")  # each layer has its own rows
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    causal_only = True
    per_layer = True

    def __init__(self, head_dim: Count, *, max_len: Count = 64, std: NotNegative = 0.0) -> None:
        super().__init__()
        self.head_dim, self.max_len, self.std = head_dim, max_len, std
        self.weight = nn.Parameter(torch.empty(max_len, head_dim))
        self.reset_parameters()

    @property
    def position_dim(self) -> int:
        """The width of a row, which is the width of a head."""
        return self.head_dim

    def reset_parameters(self) -> None:
        fill_(self.weight, torch.empty(self.max_len, self.head_dim).normal_(std=self.std))

    def table(self) -> Tensor:
        return self.weight

    def at_content(self, q: Tensor, k: Tensor, content: Content) -> tuple[Tensor, Tensor, Tensor]:
        gates, mask = contents(q, k).sigmoid(), content.seen()
        if mask is not None:
            gates = gates.masked_fill(~mask, 0)
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_len - 1)
        counted = positions.detach().nan_to_num()  # NaN has no row, but its bias is NaN
        below = counted.floor()
        at_rows = wide(q) @ wide(self.weight).T
        low, high = (at_rows.gather(-1, rows.long()) for rows in (below, counted.ceil()))
        return q, k, low + (positions - below) * (high - low)
