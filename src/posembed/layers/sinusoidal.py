"""Fixed sinusoids added at the input (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

PE[p, 2i] = sin(p / 10000^(2i/D)), PE[p, 2i+1] = cos(the same). The formula is in tables/fill.py.
"""

from __future__ import annotations

from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import require_probability
from posembed.positions.from_layout import given_or_consecutive
from posembed.tables.fill import check_even, sinusoids


class SinusoidalPositionalEmbedding(PositionEncoding):
    """Adds to each token the sinusoids of its position, then applies dropout. It has no weights and no end.

    Args:
        dim: width D, even.
        scale: the factor on the rows, whose norm is otherwise sqrt(D/2). The paper scales the tokens by sqrt(D)
            instead; either way neither should drown the other.
        base: 10,000 in the paper.
        interleaved: sines and cosines alternate (the paper), or come in two halves (fairseq, tensor2tensor).
        dropout: applied after the sum in training.

    Rows are computed in float64 when needed, since a stored table would be cast with the model.

    Raises:
        ArgumentError: an odd dim.
    """

    def __init__(
        self,
        dim: int,
        *,
        scale: float = 1.0,
        base: float = 10000.0,
        interleaved: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_even(dim)
        require_probability(dropout)
        self.dim, self.scale, self.base, self.interleaved = dim, scale, base, interleaved
        self.dropout = nn.Dropout(dropout)

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D), float32, of position_ids (...)."""
        return self.scale * sinusoids(position_ids, self.dim, base=self.base, interleaved=self.interleaved)

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        """Calls ``forward`` with explicit ids: x (B, L, D), position_ids (L,), (1, L) or (B, L) -> (B, L, D)."""
        return self(x, position_ids)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, *, offset: int | Tensor = 0) -> Tensor:
        """Adds rows to x (B, L, D), then applies dropout: (B, L, D).

        Args:
            position_ids: (L,), (1, L) or (B, L), any integer dtype. None means consecutive.
            offset: the number of earlier tokens, if positions are consecutive: a number, or (B,).

        Raises:
            ArgumentError: ids or offsets that are not integers, or shapes that do not fit.
        """
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ArgumentError(f"x must be (B, L, D={self.dim}); got {tuple(x.shape)}")
        batch, length = x.shape[:2]
        ids = given_or_consecutive(position_ids, offset, batch=batch, length=length, device=x.device)
        return self.dropout(x + self.rows(ids).to(x.dtype))

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, scale={self.scale:g}, base={self.base:g}, "
            f"interleaved={self.interleaved}, dropout={self.dropout.p:g}"
        )
