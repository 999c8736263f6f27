"""Learned rows for near tokens, content alone for far tokens: a learned table with full attention and no last row.

Near heads attend within a window of w tokens, with the rows of a ring of P >= w at their queries and keys, as in
``rolling``. Far heads attend to every earlier token, without position information. A near head sees only what it saw in
training, whatever the length of the text. A far head finds a token by its content, into which
the near heads of lower layers have mixed its neighbours. So the model knows the order of near tokens, reaches every
earlier token, and reads no untrained row. A longer text changes one thing: more tokens share a far head's softmax.

RNoPE-SWA (Yang et al. 2025, arXiv:2501.18795) and SWAN-GPT (Puvvada et al. 2025, arXiv:2504.08719) split layers
instead of heads in this way, with RoPE for near tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, fill_, projected
from posembed.layers.rolling import RingEncoding, ring_sinusoids
from posembed.layers.score_bias import Formula, ScoreBias, require_divisible
from posembed.settings import Count, NotNegative, Whole


class NearFarPositionalEmbedding(RingEncoding, ScoreBias):
    """Near heads attend within a window, with a ring of learned rows; far heads attend to all tokens, without position.

    The encoding is for causal models, which hide the future themselves. The model applies no window: the bias on the
    scores hides distant tokens from the near heads.

    Args:
        near_window: w, the number of tokens that a near head attends to, itself included.
        dim: the width D, a multiple of ``heads``.
        heads: the model's number of heads H.
        near_heads: the number of near heads; these are the first heads. None means half of the heads, rounded up.
        ring: P, the number of rows, at least w. None means w.
        std: the scale of the initial rows, which are sinusoids whose periods divide the ring.

    Raises:
        ArgumentError: a size that cannot be used, a ring below the window, or no far head.

    Examples:
        >>> import torch
        >>> from posembed import NearFarPositionalEmbedding
        >>> near_far = NearFarPositionalEmbedding(near_window=16, dim=64, heads=4)
        >>> near_far.near_heads
        2
        >>> bias = near_far.at_scores(torch.arange(100), torch.arange(100))  # (H, L, L)
        >>> bias[0, 99, 0].item(), bias[3, 99, 0].item()  # a near head and a far head, 99 tokens back
        (-inf, 0.0)
    """

    causal_only = True
    of_distance_alone = True

    def __init__(
        self,
        *,
        near_window: Count,
        dim: Count,
        heads: Count,
        near_heads: Whole | None = None,
        ring: Count | None = None,
        std: NotNegative = 1.0,
    ) -> None:
        super().__init__(heads)
        require_divisible(dim, heads)
        near_heads = (heads + 1) // 2 if near_heads is None else near_heads
        if not 1 <= near_heads < heads:
            raise ArgumentError(
                f"near_heads must be 1 to {heads - 1}, so that at least one head looks far; got {near_heads}"
            )
        self._make_ring(ring, near_window, dim)
        self.near_window, self.dim, self.near_heads, self.std = near_window, dim, near_heads, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, ring_sinusoids(self.ring, self.dim, std=self.std))

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor:
        """Returns projected rows for the queries and keys of the near heads, and zeros for the far heads."""
        rows = projected(project, self.weight).unflatten(-1, (2, self.heads, -1))
        near = torch.arange(self.heads, device=rows.device) < self.near_heads
        return self._read((rows * near.unsqueeze(-1)).flatten(-3), position_ids)

    def formula(self, device: torch.device) -> Formula:
        """Returns the formula of the bias: -inf where a near head would see beyond its window, 0 elsewhere."""
        near_heads, window = self.near_heads, self.near_window
        hidden = torch.tensor(float("-inf"), dtype=torch.float32, device=device)
        seen = torch.zeros((), dtype=torch.float32, device=device)
        return lambda head, q, k: torch.where((head < near_heads) & (q - k >= window), hidden, seen)

    forward = PositionEncoding.forward  # the bias alone is only half of the encoding
