"""Encodings that we measured and did not keep, under their names in the results.

**near-far**: learned rows for near tokens, content alone for far tokens.
Near heads attend within a window of w tokens, with the rows of a ring of P >= w at their queries and keys, as in
``rolling``. Far heads attend to every earlier token, without position information. A near head sees only what it saw in
training, whatever the length of the text. A far head finds a token by its content, into which
the near heads of lower layers have mixed its neighbours. So the model knows the order of near tokens, reaches every
earlier token, and reads no untrained row. A longer text changes one thing: more tokens share a far head's softmax.

RNoPE-SWA (Yang et al. 2025, arXiv:2501.18795) and SWAN-GPT (Puvvada et al. 2025, arXiv:2504.08719) split layers
instead of heads in this way, with RoPE for near tokens.

**learned-averaged-far**: learned-averaged, made to find distant passkeys (docs/research/lengths-learned.md).

**seqpe-losses**: SeqPE with the auxiliary losses of its paper (seqpe_losses.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from seqpe_losses import SeqPeWithLosses
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.averaged import AveragedPositionalEmbedding, DistanceBias
from posembed.layers.base import PositionEncoding, fill_, projected
from posembed.layers.rolling import ring_sinusoids
from posembed.layers.score_bias import Formula, ScoreBias, require_divisible
from posembed.nn.encodings import Entry, seqpe
from posembed.settings import Count, NotNegative, Whole


class NearFarPositionalEmbedding(ScoreBias):
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

    Examples:
        >>> import torch
        >>> from other_encodings import NearFarPositionalEmbedding
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
        self.ring = ring or near_window
        self.weight = nn.Parameter(torch.empty(self.ring, dim))
        self.near_window, self.dim, self.near_heads, self.std = near_window, dim, near_heads, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, ring_sinusoids(self.ring, self.dim, std=self.std))

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.ring, (batch, 1), generator=generator, device="cpu") + torch.arange(length)

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor:
        """Returns projected rows for the queries and keys of the near heads, and zeros for the far heads."""
        rows = projected(project, self.weight).unflatten(-1, (2, self.heads, -1))
        near = torch.arange(self.heads, device=rows.device) < self.near_heads
        return F.embedding(position_ids % self.ring, (rows * near.unsqueeze(-1)).flatten(-3))

    def formula(self, device: torch.device) -> Formula:
        """Returns the formula of the bias: -inf where a near head would see beyond its window, 0 elsewhere."""
        near_heads, window = self.near_heads, self.near_window
        hidden = torch.tensor(float("-inf"), dtype=torch.float32, device=device)
        seen = torch.zeros((), dtype=torch.float32, device=device)
        return lambda head, q, k: torch.where((head < near_heads) & (q - k >= window), hidden, seen)

    forward = PositionEncoding.forward  # the bias alone is only half of the encoding


class SharperPositionalEmbedding(AveragedPositionalEmbedding):
    """AveragedPositionalEmbedding whose heads without position attend more sharply the more tokens they see.

    log_length, log_power: queries of these heads that see n > log_length tokens are multiplied by
    (ln n / ln log_length)^log_power. max_slope: the largest slope of the lines past the training length.
    """

    def __init__(self, *, log_length: int = 2, log_power: float = 0.0, max_slope: float = 0.0, **others: Any) -> None:
        super().__init__(**others)
        self.log_from, self.log_power, self.max_slope = log_length, log_power, max_slope

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        factor = ((q_positions + 1).clamp(min=self.log_from).log() / math.log(self.log_from)) ** self.log_power
        sharper = torch.arange(self.heads) >= self.heads - self.heads_without
        return q * torch.where(sharper.view(-1, 1), factor.unsqueeze(-2), 1.0).to(q.dtype).unsqueeze(-1), k

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        bias = super().in_layer(project)
        with_position = torch.arange(self.heads) < self.heads - self.heads_without
        slope = torch.minimum(bias.slope, self.max_slope * with_position)
        bias.intercept, bias.slope = bias.intercept + (bias.slope - slope) * math.log1p(self.max_len), slope
        return bias


NOT_KEPT = {
    "near-far": Entry(
        lambda s: NearFarPositionalEmbedding(
            near_window=s.given("window"), dim=s.dim, heads=s.given("heads"), ring=s.ring
        ),
        "half the heads see a window through a ring of learned rows; the others see all, without position",
        "posembed",
    ),
    "learned-averaged-far": Entry(
        lambda s: SharperPositionalEmbedding(
            max_len=s.length,
            dim=s.dim,
            heads=s.given("heads"),
            std=0.1,
            log_length=max(s.length // 4, 2),
            log_power=0.5,
            max_slope=-2.0,
        ),
        "learned-averaged from small rows; logits of the head without position grow slowly with the length",
        "posembed",
    ),
    "seqpe-losses": Entry(
        lambda s: seqpe(s, SeqPeWithLosses), "seqpe, with its auxiliary losses", "Li et al. 2025, arXiv:2506.13277"
    ),
}
