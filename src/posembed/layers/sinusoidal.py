"""Fixed sinusoids added at the input (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

PE[p, 2i] = sin(p / 10000^(2i/D)), PE[p, 2i+1] = cos(the same). The formula is in tables/fill.py.
"""

from __future__ import annotations

from torch import Tensor

from posembed.layers.base import InputEncoding
from posembed.tables.fill import check_even, sinusoids


class SinusoidalPositionalEmbedding(InputEncoding):
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
        self, dim: int, *, scale: float = 1.0, base: float = 10000.0, interleaved: bool = True, dropout: float = 0.0
    ) -> None:
        check_even(dim)
        super().__init__(dim, dropout)
        self.scale, self.base, self.interleaved = scale, base, interleaved

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D), float32, of position_ids (...)."""
        return self.scale * sinusoids(position_ids, self.dim, base=self.base, interleaved=self.interleaved)

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        return super()._added(x, rows.to(x.dtype))
