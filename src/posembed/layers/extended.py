"""A learned table made longer when it is read: trained on its own rows, at test read past the last of them.

tile            row k mod N                  (Longformer, Beltagy et al. 2020, arXiv:2004.05150)
hierarchical    row a N + b from rows a, b   (Su 2020, kexue.fm/archives/7947); reaches N^2 positions
linear, ...     the whole table stretched    (what Chen et al. 2023, arXiv:2306.15595, do to RoPE's positions)

The ways are those of ``resize_table``, here without training any further.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.checks import check_offset, check_positions, no_row
from posembed.tables.resize_text import TEXT_METHODS

METHODS = ("tile", "hierarchical", "linear", "linear-corners", "cubic", "cubic-corners")
"""Those of ``TEXT_METHODS`` that make new rows of all the old ones."""


def extended_rows(table: Tensor, length: int, *, method: str) -> Tensor:
    """table (N, D) -> (max(N, length), D): the table itself, unless more than N positions are asked for."""
    return table if length <= len(table) else TEXT_METHODS[method](table, length)


class ExtendedPositionalEmbedding(LearnedPositionalEmbedding):
    """A learned table that in eval mode holds more positions than it has rows; in training, the plain table.

    What stays within ``max_len`` reads the trained rows, bit for bit. An input that goes beyond reads the table
    extended to its last position; of a batch the longest decides for all. With "tile" and "hierarchical" a
    position has one row at every length, and decoding with a cache is the same as reading the whole. A method that
    stretches gives every length other rows: decode with one length only, or stretch once with ``resize_table``.

    Args:
        max_len, dim: of the trained table.
        method: a name in ``METHODS``.
        dropout, init, std: as in ``LearnedPositionalEmbedding``.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self,
        max_len: int,
        dim: int,
        *,
        method: str = "tile",
        dropout: float = 0.1,
        init: str | Tensor = "normal",
        std: float = 0.02,
    ) -> None:
        super().__init__(max_len, dim, dropout=dropout, init=init, std=std)
        if method not in METHODS:
            raise ArgumentError(
                f"no way to make a table longer is called {method!r}; choose one of {', '.join(METHODS)}"
            )
        self.method = method

    def rows(self, position_ids: Tensor) -> Tensor:
        """position_ids, integers of any shape (...) -> their rows (..., D).

        Raises:
            PositionError: a negative position; in training one past the trained rows; with "hierarchical" one
                from max_len^2 on.
        """
        length = int(position_ids.max()) + 1 if position_ids.numel() else 0
        if self.training or length <= self.max_len:
            return super().rows(position_ids)
        return F.embedding(check_positions(position_ids, length), self._extended(length))

    def extra_repr(self) -> str:
        return (
            f"{self.max_len}, {self.dim}, method={self.method!r}, dropout={self.dropout}, init={self.init!r}, "
            f"std={self.std}"
        )

    def consecutive_rows(self, length: int, offset: int = 0) -> Tensor:
        """As that of the learned table, with rows for positions past the trained ones in eval mode."""
        check_offset(offset)
        end = offset + length
        if self.training or end <= self.max_len:
            return super().consecutive_rows(length, offset)
        return self._extended(end)[offset:]

    def _extended(self, length: int) -> Tensor:
        """(length, D), more than are trained."""
        if self.method == "hierarchical" and length > self.max_len**2:
            raise no_row(length - 1, self.max_len**2)
        return extended_rows(self.weight, length, method=self.method)
