"""Where position can enter a Transformer: at the input, at the queries and keys, at the scores.

Shapes, here and everywhere in posembed: B batch, H heads, L length, D width of the model, N rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query index, key index), all of no dimension -> the score changed: FlexAttention's own."""


class PositionEncoding(nn.Module):
    """The three places. An encoding overrides what it uses; the rest does nothing.

    A model calls all of them and thereby takes any encoding. Queries and keys have two methods because there
    are two ways in: rows added to what W_q and W_k read, and a function of the projected heads. The scores have
    two because there are two kinds of attention: ``at_scores`` gives a dense bias, ``score_mod`` the same as a
    function for FlexAttention. A model calls one of them.
    """

    window: int | None = None
    """The causal window that the model must apply: token i attends to tokens i - window + 1 .. i. None: all."""

    log_length: int | None = None
    """Queries that see more tokens than this, the model must multiply by ln tokens / ln log_length. None: none."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """An encoding that acts in one place overrides this; one that acts in several has no ``forward``."""
        self._refuse_forward()

    def _refuse_forward(self) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__} cannot be called by itself: a model calls at_input, before_queries_keys, "
            "at_queries_keys and at_scores, each in its place (docs/design.md)"
        )

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> PositionEncoding:
        """What this encoding is in one layer: itself, unless its scores follow from the layer's own W_q and W_k.

        ``project`` is that of ``before_queries_keys``. A model asks once in each layer, and whatever is not the
        encoding itself for its scores.
        """
        return self

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """Position ids, int64 on the CPU, to train on: (L,), or (B, L) where each sequence draws its own.

        Consecutive from 0 unless the encoding learns from positions drawn at random.
        """
        return torch.arange(length)

    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """x (B, L, D), position_ids (L,) or (B, L) -> (B, L, D)."""
        return x

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor | None:
        """What rows P added to the input h of W_q and W_k, and not to W_v, add to the queries and keys.

        Since W(h + P) = W h + W P, only rows need projecting: ``project`` maps (N, D) to (N, 2 D), the product
        with W_q and W_k side by side. Returns (L, 2 D) or (B, L, 2 D), or None for nothing.
        """
        return None

    def at_queries_keys(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        text_length: int | Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """In each layer: q (B, H, Lq, D/H), k (B, H, Lk, D/H), positions (L,) or (B, L) -> q and k of one width.

        Mostly the same width; PoPE's is twice as wide. The scores are their products divided by the root of the
        width returned, as scaled_dot_product_attention divides them; values keep their own width.

        ``text_length`` is for encodings that follow the length of the text (RoPE with a scaling): how many tokens
        the text of each token has, a number, (B,), or (B, L) where one sequence packs several texts. None: the
        largest of each sequence's positions plus one.
        """
        return q, k

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """In each layer: what to add to the scores, (H, Lq, Lk) or (B, H, Lq, Lk), or None for nothing."""
        return None

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod | None:
        """What ``at_scores`` gives, as a ``score_mod`` of torch.nn.attention.flex_attention, or None for nothing.

        No (H, Lq, Lk) tensor is made. Positions are those of the queries' and keys' indices, (L,) or (B, L).
        """
        return None
