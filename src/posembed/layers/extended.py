"""A learned table that is extended past its last trained row when it is read in eval mode.

tile            row k mod N                  (Longformer, Beltagy et al. 2020, arXiv:2004.05150)
hierarchical    row a N + b from rows a, b   (Su 2020, kexue.fm/archives/7947); for N^2 positions
linear          the whole table stretched    (as Chen et al. 2023, arXiv:2306.15595, stretch RoPE's positions)
random          new rows at random, at the scale of the trained rows: the baseline

These methods of ``resize_table`` are computed position by position, without building a longer table. No tensor's shape
depends on the largest id; compiled and exported programs could not handle such a shape.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.checks import as_int64, check_offset, check_positions, check_within
from posembed.positions.from_layout import consecutive, require_text_length, text_lengths
from posembed.settings import Count, NotNegative, Probability
from posembed.tables.resize_methods import random_rows, two_digit_rows

METHODS = ("tile", "hierarchical", "linear")
RANDOM = "random"
"""The method whose rows are drawn in advance, so that it needs the length of the longest text."""


def extended_rows(table: Tensor, position_ids: Tensor, lengths: Tensor, *, method: str) -> Tensor:
    """Returns rows (..., D) of a table (N, D) lengthened by a method of ``resize_table``, in the table's dtype.

    Args:
        position_ids: int64 of any shape (...), counted from 0.
        lengths: the length of each position's text, broadcasting with position_ids. Texts of up to N tokens get
            the table's own rows, bit for bit. "tile" and "hierarchical" ignore the lengths.
    """
    n = len(table)
    if method == "tile":
        return F.embedding(position_ids % n, table)
    own = F.embedding(position_ids.clamp(max=n - 1), table)
    if method == "hierarchical":
        return torch.where((position_ids < n).unsqueeze(-1), own, two_digit_rows(table, position_ids))
    return torch.where((lengths <= n).unsqueeze(-1), own, stretched_rows(table, position_ids, lengths))


def stretched_rows(table: Tensor, position_ids: Tensor, lengths: Tensor) -> Tensor:
    """Returns the rows (..., D) that torch.nn.functional.interpolate of the whole table gives at these positions.

    Interpolates linearly, with the outer edges aligned. Coordinates are float64.
    """
    n = len(table)
    place = ((position_ids.double() + 0.5) * n / lengths.double() - 0.5).clamp(0, n - 1)
    first = place.floor()
    dtype = torch.promote_types(table.dtype, torch.float32)
    rest = (place - first).unsqueeze(-1)
    left, right = (F.embedding((first.long() + tap).clamp(max=n - 1), table).to(dtype) for tap in (0, 1))
    return (left * (1 - rest).to(dtype) + right * rest.to(dtype)).to(table.dtype)


class ExtendedPositionalEmbedding(LearnedPositionalEmbedding):
    """A learned table that, in eval mode, accepts more positions than it has rows. In training it is an ordinary one.

    A text within ``max_len`` reads the trained rows, bit for bit; a longer text reads the table extended to its length.
    With "tile" (repeats the table) and "hierarchical" (combines two rows) a position has the same row at every length,
    and decoding with a cache equals reading the whole text. With "linear" the rows depend on the text's length: decode
    with the final ``text_length``, or stretch the table once (``resize_table``).

    Args:
        method: one of the names above, or "random": new rows from N(0, s²), where s is the standard deviation of the
            trained table. They are drawn once for ``longest`` positions, with a fixed seed, so texts of any length read
            the same rows. In float32 they equal the rows of ``resize_table``.
        longest: the number of positions, with "random"; the other methods do not take it.
        max_len, dim, dropout, init, std: as in ``LearnedPositionalEmbedding``.

    Raises:
        ArgumentError: an unknown method, or an argument that cannot be used.
        PositionError: in training, a position past the last row; with "hierarchical", a position of max_len² or more;
            with "random", of ``longest`` or more.

    Examples:
        >>> import torch
        >>> from posembed.layers import ExtendedPositionalEmbedding
        >>> tiled = ExtendedPositionalEmbedding(max_len=64, dim=32, method="tile").eval()
        >>> rows = tiled.rows(torch.arange(200))  # (L, D)
        >>> torch.equal(rows[64], rows[0])  # position 64 reads row 0
        True
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: Count,
        method: str = "tile",
        longest: Count | None = None,
        dropout: Probability = 0.1,
        init: str | Tensor = "normal",
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(max_len=max_len, dim=dim, dropout=dropout, init=init, std=std)
        if method not in (*METHODS, RANDOM):
            raise unknown("method", method, (*METHODS, RANDOM))
        if method == RANDOM and (longest is None or longest < max_len):
            raise ArgumentError(
                f"random draws its rows in advance: longest must be the number of positions, at least "
                f"max_len={max_len}; got {longest}"
            )
        if method != RANDOM and longest is not None:
            raise ArgumentError(f"longest is for the method 'random'; leave it out for {method!r}")
        self.method, self.longest = method, longest
        # No buffer: no checkpoint holds these values, and to_empty() or a loader of checkpoints would lose a buffer's.
        self.drawn = None if longest is None else random_rows(torch.zeros(max_len, dim, device="cpu"), longest, std=1.0)
        """The rows of "random", (longest, D), at scale 1 on the CPU. The first ``max_len`` rows are not used."""

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        text_length: int | Tensor | None = None,
    ) -> Tensor:
        """Adds rows to x (B, L, D), as the learned table does.

        ``text_length`` is the number of tokens of each text: a number, (B,), or (B, L) for packed texts. None
        means the largest position of each sequence plus one.
        """
        if text_length is None:
            return super().forward(x, position_ids, offset=offset)
        ids = self._ids(x, position_ids, offset)
        require_text_length(text_length, x.shape[1], batch=x.shape[0])
        return self._added(x, self.rows(ids, text_length=text_length))

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        """Calls ``forward`` with explicit ids: x (B, L, D), position_ids (L,), (1, L) or (B, L) -> (B, L, D)."""
        return self(x, position_ids, text_length=text_length)

    def rows(self, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        """Returns the rows (..., D) of position_ids, integers of any shape (...). ``text_length`` is as in ``forward``.

        Raises:
            PositionError: a negative position; in training, a position past the trained rows; with
                "hierarchical", a position of max_len^2 or more; with "random", a position of ``longest`` or more.
        """
        if self.training or (self.longest is not None and self.longest <= self.max_len):
            return super().rows(position_ids)
        if self.longest is not None or self.method == "hierarchical":
            ids = check_positions(position_ids, self.longest or self.max_len**2)
        else:  # only negative positions have no row
            ids = as_int64(position_ids, "position_ids")
            ids = torch.maximum(ids, check_positions(ids.clamp(max=self.max_len - 1), self.max_len))
        lengths = text_lengths(ids, text_length)
        if text_length is not None and not isinstance(text_length, Tensor):
            ids = check_within(ids, text_length)  # with one length per sequence, later positions are padding
        if self.drawn is not None:
            own = F.embedding(ids.clamp(max=self.max_len - 1), self.weight)
            new = F.embedding(ids, self.drawn.to(self.weight)) * self.weight.std(correction=0).detach()
            return torch.where((ids < self.max_len).unsqueeze(-1), own, new)
        return extended_rows(self.weight, ids, lengths, method=self.method)

    def consecutive_rows(self, length: int, offset: int = 0) -> Tensor:
        """Returns a copy of consecutive rows (L, D), which in eval mode may lie past the trained rows."""
        if self.training or (self.longest is not None and self.longest <= self.max_len):
            return super().consecutive_rows(length, offset)
        check_offset(offset)
        return self.rows(consecutive(length, offset, device=self.weight.device))
