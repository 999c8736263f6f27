"""A learned table that is concatenated to the tokens instead of added: part of the width is for the position.

The model keeps its width D. Each token keeps its first D - P components, and the row of its position replaces the last
P components. So a matrix W of the next layer computes x W_1 + p W_2, with W_1 and W_2 parts of W, where a sum gives
(x + p) W. Everything outside the table is the same as with a sum: only the table is smaller, N P numbers, not N D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, fill_
from posembed.positions.checks import check_positions
from posembed.settings import Count, NotNegative, Probability, TwoOrMore
from posembed.tables.fill import initial_rows
from posembed.tables.layout import TableLayout


class ConcatenatedPositionalEmbedding(InputEncoding):
    """Replaces the last P components of each token by the trained row of its position, then applies dropout.

    Args:
        max_len: N, the number of positions that the table holds.
        dim: the width D of the model.
        position_dim: P, the width of a row, from 1 to D - 1. None means a quarter of D.
        dropout: the probability of dropout on the result in training.
        init, std: the initial values (N, P), as in ``LearnedPositionalEmbedding``.

    The state dict holds ``weight`` (N, P) and nothing else.

    Raises:
        ArgumentError: an argument that cannot be used.
        PositionError: in a call, a position without a row.

    Examples:
        >>> import torch
        >>> from posembed.layers import ConcatenatedPositionalEmbedding
        >>> positions = ConcatenatedPositionalEmbedding(max_len=512, dim=64, position_dim=16, dropout=0.0)
        >>> x = torch.randn(2, 10, 64)  # (B, L, D)
        >>> y = positions(x)
        >>> torch.equal(y[..., :48], x[..., :48]), torch.equal(y[0, :, 48:], positions.weight[:10])
        (True, True)
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: TwoOrMore,
        position_dim: Count | None = None,
        dropout: Probability = 0.1,
        init: str | Tensor = "normal",
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(dim, dropout)
        position_dim = max(dim // 4, 1) if position_dim is None else position_dim
        if position_dim >= dim:
            raise ArgumentError(
                f"position_dim must be 1 to {dim - 1}, so that some of dim={dim} is left for the token; got "
                f"{position_dim}"
            )
        self.max_len, self.position_dim = max_len, position_dim
        self.init, self.std = init if isinstance(init, str) else "given", std
        self.weight = nn.Parameter(torch.empty(max_len, position_dim))
        self._fill(init)

    def reset_parameters(self) -> None:
        """Draws a new table."""
        self._fill(self.init)

    def table(self) -> Tensor:
        return self.weight

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., P) of position_ids, integers of any shape (...), without dropout.

        Raises:
            PositionError: a position without a row.
            ArgumentError: ids that are not integers.
        """
        return F.embedding(check_positions(position_ids, self.max_len), self.weight)

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        kept = x[..., : self.dim - self.position_dim]
        both = torch.cat((kept, rows.expand(*x.shape[:-1], -1)), dim=-1)
        return F.dropout(both, self.dropout, self.training)

    def _fill(self, init: str | Tensor) -> None:
        fill_(self.weight, initial_rows(init, TableLayout(), self.max_len, self.position_dim, std=self.std))
