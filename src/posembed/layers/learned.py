"""A learned table: one trained row a position (Gehring et al. 2017, Devlin et al. 2019, Radford et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.positions import check_positions, consecutive
from posembed.positions.checks import no_row
from posembed.tables.fill import initial_table
from posembed.tables.layout import PADDING, TableLayout


class LearnedPositionalEmbedding(PositionEncoding):
    """Adds row i of a trained table to token i, then applies dropout.

    Args:
        max_len: how many positions the table holds.
        dim: the width D.
        dropout: applied after the sum, in training.
        init: "normal", "truncated_normal", "xavier", "sinusoidal", "zero", or a whole table (rows, D).
        std: the scale of the normal, truncated normal and sinusoidal start.
        layout: which rows hold the positions; for a known model a value such as ``TableLayout.roberta(pad_id=1)``.
        check_ids: False for those who have checked that every position id has a row.

    The only entry of its state dict is ``weight`` (rows, D).
    """

    def __init__(
        self,
        max_len: int,
        dim: int,
        *,
        dropout: float = 0.1,
        init: str | Tensor = "normal",
        std: float = 0.02,
        layout: TableLayout = TableLayout(),  # noqa: B008 (frozen)
        check_ids: bool = True,
    ) -> None:
        super().__init__()
        self.max_len = max_len
        self.dim = dim
        self.dropout = dropout
        self.init = init if isinstance(init, str) else "given"
        self.std = std
        self.layout = layout
        self.check_ids = check_ids
        self.weight = nn.Parameter(torch.empty(layout.rows(max_len), dim))
        if isinstance(init, str):
            self.reset_parameters()
        else:
            with torch.no_grad():
                self.weight.copy_(init)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the table anew; rows that are not positions are zero."""
        front, positions, behind = self.layout.split(self.weight)
        positions.copy_(initial_table(self.init, self.max_len, self.dim, std=self.std))
        front.zero_()
        behind.zero_()

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0) -> Tensor:
        """x (B, L, D) -> x plus the rows of its positions, then dropout. Integer x (B, L) -> the rows, (B, L, D).

        Args:
            position_ids: (L,) or (B, L), any integer dtype. None: consecutive.
            offset: how many tokens came before, where ids are consecutive: a number, or (B,).

        Raises:
            PositionError: a position has no row.
            ArgumentError: ids that are not integers, or shapes that do not fit.
        """
        length = x.shape[1]
        if position_ids is not None:
            rows = self.rows(position_ids)
        elif isinstance(offset, Tensor):
            rows = self.rows(consecutive(length, offset))
        else:
            rows = self._slice(offset, length)
        if not x.is_floating_point():
            return rows.expand(*x.shape, self.dim)
        return F.dropout(x + rows, self.dropout, self.training)

    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """x (B, L, D), position_ids (L,) or (B, L) -> (B, L, D): ``forward`` with ids."""
        return self.forward(x, position_ids)

    def rows(self, position_ids: Tensor) -> Tensor:
        """position_ids (L,) or (B, L) -> their rows, (L, D) or (B, L, D): no sum, no dropout."""
        if self.check_ids:
            lowest = 0 if self.layout.pad_row is None else PADDING
            position_ids = check_positions(position_ids, self.max_len, lowest=lowest)
        return F.embedding(self.layout.rows_of(position_ids), self.weight, padding_idx=self.layout.pad_row)

    def _slice(self, offset: int, length: int) -> Tensor:
        """The rows of consecutive positions, (L, D): a view of the table, whose gradient needs no scatter."""
        if offset < 0:
            raise ArgumentError(f"offset counts the tokens before this input and cannot be negative; got {offset}")
        if offset + length > self.max_len:
            raise no_row(offset + length - 1, self.max_len)
        start = self.layout.front + offset
        return self.weight[start : start + length]

    def extra_repr(self) -> str:
        return f"{self.max_len}, {self.dim}, dropout={self.dropout}, init={self.init!r}, layout={self.layout}"
