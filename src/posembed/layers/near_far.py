"""Learned rows for what is near, content alone for what is far: a learned table, full attention and no last row.

Some heads look near: under a window of w tokens, with the rows of a ring of P >= w at their queries and keys, as
``rolling`` does. The others look far: at every token before, with no position at all. What a near head sees it
has met in training, however long the text; a far head finds a token by what it is, and that includes its
neighbours, which the near heads of the layers below have written into it. So nearby the order is known, nothing
is out of reach, and no row is ever read that was not trained. What is left for a longer text to disturb is that
more tokens share the softmax of a far head.

By layers rather than heads, and with RoPE for the near, this is RNoPE-SWA (Yang et al. 2025, arXiv:2501.18795) and
SWAN-GPT (Puvvada et al. 2025, arXiv:2504.08719).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.parameters import fill_
from posembed.layers.rolling import ring_sinusoids
from posembed.layers.score_bias import Formula, ScoreBias
from posembed.positions.checks import as_int64


class NearFarPositionalEmbedding(ScoreBias):
    """Heads that see a window through a ring of learned rows beside heads that see all without a position.

    For a causal model, which hides the future itself and applies no window: the bias on the scores hides from the
    near heads what is far from them.

    Args:
        window: w, how many tokens a near head attends to, itself included.
        dim: width D.
        heads: H of the model; D a multiple of it.
        near_heads: how many of them, the first ones, look near; None takes half, rounded up.
        ring: P, the number of rows, at least w; None takes w.
        std: of the rows at the start, sinusoids whose periods divide the ring.

    Raises:
        ArgumentError: a size that cannot be, a ring below the window, or no head that looks far.
    """

    of_distance_alone = True

    def __init__(
        self,
        window: int,
        dim: int,
        *,
        heads: int,
        near_heads: int | None = None,
        ring: int | None = None,
        std: float = 1.0,
    ) -> None:
        super().__init__(heads)
        ring = window if ring is None else ring
        near_heads = (heads + 1) // 2 if near_heads is None else near_heads
        if window < 1 or dim < 1 or dim % heads:
            raise ArgumentError(
                f"window and dim must be at least 1 and dim a multiple of heads; got {window}, {dim} and {heads}"
            )
        if not 1 <= near_heads < heads:
            raise ArgumentError(
                f"near_heads must leave some of the {heads} heads to look far, and be at least 1; got {near_heads}"
            )
        if ring < window:
            raise ArgumentError(
                f"ring={ring} is smaller than window={window}: two tokens that see each other would share a row; "
                f"give a ring of at least {window} rows or a window of at most {ring} tokens"
            )
        self.near_window, self.dim, self.near_heads = window, dim, near_heads
        self.ring, self.std = ring, std
        self.weight = nn.Parameter(torch.empty(ring, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, ring_sinusoids(self.ring, self.dim, std=self.std))

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """Ids (B, L), int64: each sequence starts at a phase of its own, so that all rows are trained."""
        return torch.randint(self.ring, (batch, 1), generator=generator) + torch.arange(length)

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor:
        """Rows for the queries and keys of the near heads, zeros for those of the others."""
        rows = project(self.weight).unflatten(-1, (2, self.heads, -1))
        near = torch.arange(self.heads, device=rows.device) < self.near_heads
        return F.embedding(
            as_int64(position_ids, "position_ids") % self.ring, (rows * near.unsqueeze(-1)).flatten(-3)
        )

    def formula(self, device: torch.device) -> Formula:
        """-inf where a near head would see further than its window."""
        near_heads, window = self.near_heads, self.near_window
        hidden = torch.tensor(float("-inf"), dtype=torch.float32, device=device)
        seen = torch.zeros((), dtype=torch.float32, device=device)
        return lambda head, q, k: torch.where((head < near_heads) & (q - k >= window), hidden, seen)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """There is none: its bias is only half of it. A model calls before_queries_keys and at_scores."""
        self._refuse_forward()

    def extra_repr(self) -> str:
        return (
            f"{self.near_window}, {self.dim}, heads={self.heads}, near_heads={self.near_heads}, ring={self.ring}, "
            f"std={self.std:g}"
        )
