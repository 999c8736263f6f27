"""BiPE: learned rows within a segment, RoPE or ALiBi between segments (He et al. 2024, arXiv:2401.16421).

Segments, such as sentences, end at separators. The tokens of a segment are counted from 0 and get a learned row at the
input; attention sees only which segment a token is in. A position id holds the segment and the index in the segment as
two digits in base N:

    id = N * segment + min(index in the segment, N - 1)

``posembed.positions.from_separators`` computes these ids from token ids. The encoding gets segments only through these
ids, so that padding and caches work as with other ids. Without ids, every N tokens are a segment.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import Float, Integer
from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, ScoreMod, fill_
from posembed.layers.rotary import RotaryEmbedding
from posembed.layers.score_bias import ScoreBias
from posembed.positions.checks import as_int64, check_positions
from posembed.settings import Count, NotNegative, Probability
from posembed.tables.fill import initial_rows
from posembed.tables.layout import TableLayout


class BilevelEncoding(InputEncoding):
    """BiPE: ``forward`` adds a row for the index in a segment; each layer applies ``between`` to segment numbers.

    Args:
        max_len: N, the number of rows. In longer segments, later tokens share the last row, as in the authors' code.
        dim: the width D.
        between: encodes the segment numbers: ``RotaryEmbedding(head_dim)`` (BiPE-RoPE), ``Alibi(heads, scale=96)``
            (BiPE-ALiBi, with the factor of the authors' code) or another bias of the scores.
        dropout, std: as in ``LearnedPositionalEmbedding``.

    Raises:
        ArgumentError: an argument that cannot be used.
        PositionError: in a call, a negative id.

    Examples:
        >>> import torch
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import BilevelEncoding
        >>> from posembed.nn import Decoder
        >>> from posembed.positions import from_separators
        >>> bipe = BilevelEncoding(max_len=64, dim=32, between=RotaryEmbedding(8))
        >>> token_ids = torch.tensor([[5, 6, 2, 7, 8, 9, 2]])  # 2 ends a sentence
        >>> ids = from_separators(token_ids, [2], max_len=64)
        >>> ids.tolist()
        [[0, 1, 2, 64, 65, 66, 67]]
        >>> Decoder(dim=32, heads=4, layers=2, encoding=bipe)(torch.randn(1, 7, 32), ids).shape
        torch.Size([1, 7, 32])
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: Count,
        between: RotaryEmbedding | ScoreBias,
        dropout: Probability = 0.1,
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(dim, dropout)
        if not isinstance(between, RotaryEmbedding | ScoreBias) or between.window or between.log_length:
            raise ArgumentError(
                "between must be a RotaryEmbedding or a bias such as Alibi, without a window or log_length of its own; "
                f"got {between!r}. Set them on the BilevelEncoding"
            )
        self.max_len, self.between, self.std = max_len, between, std
        self.causal_only = between.causal_only
        if isinstance(between, RotaryEmbedding):
            self.head_dim = between.head_dim
        else:
            self.heads = between.heads
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new rows."""
        fill_(self.weight, initial_rows("normal", TableLayout(), self.max_len, self.dim, std=self.std))

    def table(self) -> Tensor:
        """Returns the rows (N, D) of the positions within a segment."""
        return self.weight

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D) for the index of each id (...), an integer, in its segment.

        Raises:
            PositionError: a negative id.
        """
        ids = as_int64(position_ids, "position_ids")
        places = torch.where(ids < 0, ids, ids % self.max_len)
        return F.embedding(check_positions(places, self.max_len), self.weight)

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *, text_length: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotates by the segment of each token. A scaling uses the number of segments as the text's length."""
        q_segments, k_segments = self._segments(q_positions, k_positions)
        return self.between.at_queries_keys(q, k, q_segments, k_segments)

    def at_scores(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "... H Lq Lk"] | None:
        return self.between.at_scores(*self._segments(q_positions, k_positions))

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod | None:
        return self.between.score_mod(*self._segments(q_positions, k_positions))

    def _segments(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        q = as_int64(q_positions, "q_positions") // self.max_len
        return q, q if k_positions is q_positions else as_int64(k_positions, "k_positions") // self.max_len

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # in which the encoding between segments is an argument
