"""The places where position can enter a Transformer: the input, the queries and keys, and the scores.

Shapes, here and everywhere in posembed: B batch, H heads, L length, D width of the model, N rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's own: (score, batch, head, query index, key index), all of no dimension -> the new score."""


def projected(project: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Returns the rows (N, D) projected to (N, 2 D). Raises ArgumentError for a projection of another width."""
    both: Tensor = project(rows)
    if both.shape != (rows.shape[0], 2 * rows.shape[1]):
        raise ArgumentError(
            f"project must map rows {tuple(rows.shape)} to {(rows.shape[0], 2 * rows.shape[1])}, W_q and W_k "
            f"side by side without W_v; got {tuple(both.shape)}"
        )
    return both


class PositionEncoding(nn.Module):
    """The base class of all encodings. An encoding overrides the methods it uses; the others do nothing.

    A model that calls all of them takes any encoding. Queries and keys have two methods because position enters in
    two ways: as rows added to the input of W_q and W_k, and as a function of the projected heads. The scores have
    two because there are two kinds of attention: ``at_scores`` returns a dense bias, ``score_mod`` the same bias
    as a function for FlexAttention. A model calls one of these two.
    """

    window: int | None = None
    """The causal window that the model applies: token i attends to i - window + 1 .. i. None means all tokens."""

    log_length: int | None = None
    """The model multiplies a query that sees n > log_length tokens by ln n / ln log_length. None means by 1."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Applies an encoding that acts in one place. Encodings that act in several have no ``forward``."""
        self._refuse_forward()

    def _refuse_forward(self) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__} cannot be called by itself: a model calls at_input, before_queries_keys, "
            "at_queries_keys and at_scores, each in its place (docs/design.md)"
        )

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> PositionEncoding:
        """Returns this encoding for one layer: itself, unless its scores depend on the layer's own W_q and W_k.

        ``project`` is as in ``before_queries_keys``. A model calls this once per layer. If the result is another
        encoding, that encoding gives the layer's scores.
        """
        return self

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """Returns position ids to train on, int64 on the CPU: (L,), or (B, L) with a draw for each sequence.

        They count from 0 unless the encoding learns from random positions.
        """
        return torch.arange(length, device="cpu")

    def table(self) -> Tensor | None:
        """Returns the learned rows (N, D), with their gradient, or None for an encoding that has no rows."""
        return None

    def on_grid(self, grid: tuple[int, int]) -> PositionEncoding:
        """Returns this encoding for images of ``grid``, (height, width) in patches, with one token before them.

        The result is a copy, or this encoding if nothing depends on the grid; this encoding stays unchanged.
        """
        return self

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        """Adds position to x (B, L, D) at position_ids (L,) or (B, L): (B, L, D).

        ``text_length`` is as in ``at_queries_keys``.
        """
        return x

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor | None:
        """Returns what rows P add to the queries and keys when added to the input h of W_q and W_k, not of W_v.

        Since W(h + P) = W h + W P, only rows need projecting: ``project`` maps (N, D) to (N, 2 D), the products
        with W_q and W_k side by side, without their biases. Returns (L, 2 D) or (B, L, 2 D), or None for nothing.
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
        """Adds position to q (B, H, Lq, D/H) and k (B, H, Lk, D/H) in each layer; positions are (L,) or (B, L).

        The returned q and k have the same width: usually D/H, twice that for PoPE. The scores are their products
        divided by the root of that width, as in scaled_dot_product_attention; values keep their own width.

        ``text_length`` is for encodings that depend on the length of the text (RoPE with a scaling): the number of
        tokens in each token's text, as a number, (B,), or (B, L) for packed texts. None means the largest position
        of each sequence plus one.
        """
        return q, k

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Returns the bias to add to each layer's scores, (H, Lq, Lk) or (B, H, Lq, Lk), or None for no bias."""
        return None

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod | None:
        """Returns the bias of ``at_scores`` as a FlexAttention ``score_mod``, or None for no bias.

        This avoids the (H, Lq, Lk) tensor. Positions, (L,) or (B, L), are those of the query and key indices.
        """
        return None
