"""A learned table: one trained row a position (Gehring et al. 2017, Radford et al. 2018, Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.kernels.memory import add
from posembed.layers.base import PositionEncoding
from posembed.positions.checks import check_offset, check_positions, no_row, require_integers
from posembed.positions.from_layout import consecutive
from posembed.tables.fill import initial_rows
from posembed.tables.layout import PADDING, TableLayout
from posembed.tables.scale import warn_if_far_apart


class LearnedPositionalEmbedding(PositionEncoding):
    """Adds the trained row of its position to each token, then applies dropout.

    A position without a row is never read: it raises PositionError before the lookup, on CPU and CUDA, and under
    torch.compile from within the graph. The state dict holds ``weight`` (N, D) and nothing else.

    Args:
        max_len: how many positions the table holds.
        dim: the width D.
        dropout: applied to the sum, in training.
        init: "normal", "truncated_normal", "xavier", "sinusoidal", "zero", or a whole table (N, D).
        std: the scale of a normal, truncated normal or sinusoidal start.
        layout: which rows hold the positions; for a known model a value such as ``TableLayout.roberta(pad_id=1)``.
        check_ids: False for those who have checked that every explicit id has a row. On CUDA the check waits for
            the ids; consecutive positions are checked for nothing, and always.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self,
        max_len: int,
        dim: int,
        *,
        dropout: float = 0.1,
        init: str | Tensor = "normal",
        std: float = 0.02,
        layout: TableLayout = TableLayout(),  # noqa: B008 (it is frozen)
        check_ids: bool = True,
    ) -> None:
        super().__init__()
        require_at_least_one(max_len=max_len, dim=dim)
        require_probability(dropout)
        if layout.prefix or layout.tail or layout.grid:
            raise ArgumentError(f"a sequence has no prefix, tail or grid; got {layout}. Use LearnedGridEmbedding")
        self.max_len = max_len
        self.dim = dim
        self.dropout = dropout
        self.init = init if isinstance(init, str) else "given"
        self.std = std
        self.layout = layout
        self.check_ids = check_ids
        self.weight = nn.Parameter(torch.empty(layout.rows(max_len), dim))
        self._scale_was_seen = False
        self._fill(init)

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        if self.init == "given":
            raise ArgumentError("this table was given and cannot be drawn anew; load it with load_state_dict")
        self._fill(self.init)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0) -> Tensor:
        """x (B, L, D) -> x plus the rows of its positions, then dropout: (B, L, D).

        Integer x (B, L), such as token ids -> the rows alone, (B, L, D).

        Args:
            position_ids: (L,), (1, L) or (B, L), any integer dtype. None: consecutive.
            offset: where positions are consecutive, how many tokens came before: a number, or (B,).

        Raises:
            PositionError: a position has no row.
            ArgumentError: ids or offsets that are not integers, or shapes that do not fit.
        """
        self.require_shapes(x, position_ids, offset)
        if position_ids is not None:
            rows = self.rows(position_ids)
        elif isinstance(offset, Tensor):
            rows = self.rows(consecutive(x.shape[1], offset))
        else:
            rows = self.consecutive_rows(x.shape[1], offset)
        if not x.is_floating_point():
            return rows.expand(*x.shape, self.dim)
        if self.will_look_at_scales():
            self._scale_was_seen = True
            warn_if_far_apart(x, rows, stacklevel=4)  # forward, two frames of nn.Module, the caller
        return F.dropout(_sum(x, rows), self.dropout, self.training, inplace=True)

    def will_look_at_scales(self) -> bool:
        """Whether ``forward`` would compare tokens and rows: in the first training step, once."""
        return self.training and not torch.compiler.is_compiling() and not self._scale_was_seen

    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """x (B, L, D), position_ids (L,), (1, L) or (B, L) -> (B, L, D): ``forward`` with explicit ids."""
        return self(x, position_ids)

    def rows(self, position_ids: Tensor) -> Tensor:
        """position_ids, integers of any shape (...) -> their rows (..., D): no sum, no dropout.

        Where the layout has a row for padding, the position ``PADDING`` (-1) reads it and trains nothing.

        Raises:
            PositionError: a position has no row.
            ArgumentError: the ids are not integers.
        """
        return F.embedding(self.row_ids(position_ids), self.weight, padding_idx=self.layout.pad_row)

    def row_ids(self, position_ids: Tensor) -> Tensor:
        """position_ids (...) -> the numbers of their rows, int64 (...). Raises what ``rows`` does."""
        if self.check_ids:
            lowest = 0 if self.layout.pad_row is None else PADDING
            position_ids = check_positions(position_ids, self.max_len, lowest=lowest)
        else:
            require_integers(position_ids, "position_ids")
        return self.layout.rows_of(position_ids)

    def extra_repr(self) -> str:
        return (
            f"{self.max_len}, {self.dim}, dropout={self.dropout}, init={self.init!r}, std={self.std}, "
            f"layout={self.layout}, check_ids={self.check_ids}"
        )

    def consecutive_rows(self, length: int, offset: int = 0) -> Tensor:
        """The rows of positions offset .. offset + length - 1: (L, D), a view of the table.

        Broadcast over a batch its gradient is a sum and not a scatter.

        Raises:
            PositionError: a position has no row.
        """
        check_offset(offset)
        if offset + length > self.max_len and length > 0:
            if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
                # An error while tracing would be torch.compile's own; this one is ours, when the graph runs.
                ids = consecutive(length, offset, device=self.weight.device)
                return F.embedding(check_positions(ids, self.max_len), self.weight)
            raise no_row(offset + length - 1, self.max_len)
        start = self.layout.front + offset
        return self.weight[start : start + length]

    def require_shapes(self, x: Tensor, position_ids: Tensor | None, offset: int | Tensor) -> None:
        """Raise ArgumentError unless they fit ``forward``."""
        if x.is_floating_point():
            if x.dim() != 3 or x.shape[-1] != self.dim:
                raise ArgumentError(f"x must be (B, L, D={self.dim}); got {tuple(x.shape)}")
        else:
            require_integers(x, "x, where it is not (B, L, D) floats,")
            if x.dim() != 2:
                raise ArgumentError(f"integer x must be (B, L); got {tuple(x.shape)}")
        batch, length = x.shape[0], x.shape[1]
        if position_ids is not None:
            if isinstance(offset, Tensor) or offset != 0:
                raise ArgumentError("give position_ids or offset, not both: add the offset to the ids")
            shape = tuple(position_ids.shape)
            if not (len(shape) in (1, 2) and shape[-1] == length and (len(shape) == 1 or shape[0] in (batch, 1))):
                raise ArgumentError(
                    f"position_ids must be (L,)=({length},) or (B, L)=({batch}, {length}) for this x; got {shape}"
                )
        elif isinstance(offset, Tensor) and offset.dim() and offset.shape[0] != batch:
            raise ArgumentError(
                f"offset must be a number or (B,)=({batch},) for this x; got {tuple(offset.shape)}"
            )

    @torch.no_grad()
    def _fill(self, init: str | Tensor) -> None:
        self.weight.copy_(initial_rows(init, self.layout, self.max_len, self.dim, std=self.std))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        loaded = state_dict.get(f"{prefix}weight")
        if loaded is None or loaded.shape == self.weight.shape:
            return super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        *_, errors = lists
        errors.append(
            f"{prefix}weight is {tuple(loaded.shape)}, and this layer holds {tuple(self.weight.shape)}: "
            f"{self.max_len} positions in {self.layout}. Lengthen or shorten the table with "
            f"posembed.resize_table(table, length={self.max_len}), or build the layer at the table's own length"
        )


def _sum(x: Tensor, rows: Tensor) -> Tensor:
    """x + rows; into the rows where they are a gathered (B, L, D), since fresh memory costs more than the sum.

    Rows that are a view of the table are (L, D) and never written to.
    """
    if rows.shape == x.shape and rows.dtype == torch.promote_types(x.dtype, rows.dtype):
        return rows.add_(x)
    return add(x, rows)


def require_at_least_one(**sizes: int) -> None:
    """Raise ArgumentError for a size below 1, under the name that the user knows."""
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"{name} must be at least 1; got {size}")


def require_probability(dropout: float) -> None:
    """Raise ArgumentError unless it is in [0, 1]."""
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout is a probability, in [0, 1]; got {dropout}")
