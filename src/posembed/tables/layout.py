"""Layouts of a table: which rows belong to positions, and which come before or after them.

    row      0 ... reserved-1 | ... prefix ... | position 0 ... position length-1 | ... tail ...

Position 0 is row 0 in BERT and row ``pad_token_id + 1`` in RoBERTa; a ViT's table starts with the class token's
row and continues as a grid.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

from posembed.errors import ArgumentError

PADDING = -1
"""The position of a padding token. A table with a pad row reads that row for it; other tables reject it."""


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """The roles of the rows of a table (N, D). By default row i is position i.

    Args:
        reserved: the number of leading rows that no position reads (fairseq counts positions from ``pad_id + 1``).
        pad_row: the reserved row that padded positions read, or None if the model has none.
        prefix: the number of rows of special tokens before the positions (class, distillation).
        grid: (height, width) if the positions are the cells of a grid, row by row; None for a sequence and for a
            grid of unknown size.
        tail: the number of rows of special tokens after the positions.

    "Length" always means the number of positions that the table holds.

    Raises:
        ArgumentError: numbers that no table can have, or a pad_row that is not reserved.

    Examples:
        >>> import torch
        >>> from posembed import TableLayout
        >>> layout = TableLayout.roberta(pad_id=1)
        >>> layout.length(514)  # 514 rows hold 512 positions
        512
        >>> layout.rows_of(torch.tensor([0, 1, 2])).tolist()
        [2, 3, 4]
    """

    reserved: int = 0
    pad_row: int | None = None
    prefix: int = 0
    grid: tuple[int, int] | None = None
    tail: int = 0

    BERT: ClassVar[TableLayout]
    GPT2: ClassVar[TableLayout]
    BART: ClassVar[TableLayout]
    OPT: ClassVar[TableLayout]
    WHISPER: ClassVar[TableLayout]
    CLIP_TEXT: ClassVar[TableLayout]
    CLIP_VISION: ClassVar[TableLayout]
    VIT: ClassVar[TableLayout]
    DEIT: ClassVar[TableLayout]

    def __post_init__(self) -> None:
        for name in ("reserved", "prefix", "tail"):
            rows = getattr(self, name)
            if not isinstance(rows, Integral) or rows < 0:
                raise ArgumentError(f"{name} counts rows and must be a whole number of at least 0; got {rows!r}")
        if self.pad_row is not None and not 0 <= self.pad_row < self.reserved:
            raise ArgumentError(
                f"pad_row must be one of the {self.reserved} reserved rows; got {self.pad_row}. "
                "Raise reserved, or leave pad_row out"
            )
        if self.grid is not None and (len(self.grid) != 2 or not all(map(_is_side, self.grid))):
            raise ArgumentError(f"grid must be (height, width), each at least 1; got {self.grid}")

    @classmethod
    def roberta(cls, pad_id: int = 1) -> TableLayout:
        """Returns the layout of RoBERTa, XLM-R, CamemBERT, Longformer: padding in row ``pad_id``, then position 0."""
        if not isinstance(pad_id, Integral):
            raise ArgumentError(f"pad_id is the id of the padding token, such as 1; got {pad_id!r}")
        return cls(reserved=pad_id + 1, pad_row=pad_id)

    def on_grid(self, height: int, width: int) -> TableLayout:
        """Returns the same layout with this grid."""
        return replace(self, grid=(height, width))

    def __str__(self) -> str:
        """Formats the constructor call, leaving out default values."""
        given = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return f"TableLayout({', '.join(f'{name}={value}' for name, value in given)})"

    @property
    def front(self) -> int:
        """The number of rows before position 0, which is also the row number of position 0."""
        return self.reserved + self.prefix

    def rows(self, length: int) -> int:
        """Returns the number of rows that a table needs to hold this many positions."""
        if self.grid is not None and length != self.grid[0] * self.grid[1]:
            raise ArgumentError(
                f"a grid of {self.grid[0]} x {self.grid[1]} holds {self.grid[0] * self.grid[1]} positions; "
                f"got a length of {length}. Pass the grid that belongs to this table"
            )
        return self.front + length + self.tail

    def length(self, rows: int) -> int:
        """Returns the number of positions that a table of this many rows holds."""
        length = rows - self.front - self.tail
        if length < 1:
            raise ArgumentError(
                f"a table of {rows} rows has no row left for a position: {self.reserved} reserved, "
                f"{self.prefix} prefix and {self.tail} tail rows are not positions"
            )
        self.rows(length)
        return length

    def split(self, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits a table (N, D) into three views: rows before the positions, rows of positions, rows after them."""
        length = self.length(table.shape[0])
        return table[: self.front], table[self.front : self.front + length], table[self.front + length :]

    def rows_of(self, position_ids: Tensor) -> Tensor:
        """Returns the row numbers of position_ids, integers of any shape. ``PADDING`` becomes the pad row."""
        position_ids = position_ids.to(torch.int64)  # a small dtype may not hold the row number, or PADDING
        rows = position_ids + self.front
        if self.pad_row is None:
            return rows
        return torch.where(position_ids == PADDING, self.pad_row, rows)


def _is_side(number: object) -> bool:
    return isinstance(number, Integral) and number >= 1  # type: ignore[operator]


def require_layout(layout: object) -> None:
    """Raises ArgumentError for anything but a TableLayout."""
    if not isinstance(layout, TableLayout):
        raise ArgumentError(f"layout must be a TableLayout, such as TableLayout.roberta(pad_id=1); got {layout!r}")


TableLayout.BERT = TableLayout.GPT2 = TableLayout.WHISPER = TableLayout.CLIP_TEXT = TableLayout()
TableLayout.BART = TableLayout.OPT = TableLayout(reserved=2, pad_row=1)
TableLayout.VIT = TableLayout.CLIP_VISION = TableLayout(prefix=1)
TableLayout.DEIT = TableLayout(prefix=2)


def is_table(tensor: Tensor) -> bool:
    """Returns whether a tensor has the dtype and shape of a table: floating, (N, D), (1, N, D) or (N, 1, D)."""
    is_line = tensor.dim() == 2 or (tensor.dim() == 3 and 1 in tensor.shape[:2])
    return is_line and 0 not in tensor.shape and tensor.is_floating_point()


def table_rows(table: Tensor) -> Tensor:
    """Returns a view of the rows (N, D) of a floating table (N, D), (1, N, D) or (N, 1, D).

    Raises ArgumentError for anything else.
    """
    if not is_table(table):
        raise ArgumentError(
            f"a table is a floating tensor (N, D), (1, N, D) or (N, 1, D); got {table.dtype} of shape "
            f"{tuple(table.shape)}. Pass the rows alone, such as model.wpe.weight"
        )
    return table if table.dim() == 2 else table.squeeze(table.shape.index(1))


def as_table(rows: Tensor, table: Tensor) -> Tensor:
    """Returns a view of rows (M, D) with the axes of a table: (M, D), (1, M, D) or (M, 1, D)."""
    return rows if table.dim() == 2 else rows.unsqueeze(table.shape.index(1))


def float64_rows(table: Tensor, *, at_least: int = 1) -> Tensor:
    """Returns the rows (N, D) of a table, as ``table_rows`` does, in float64 on the CPU, detached.

    Raises ArgumentError for a table that ``table_rows`` rejects, or that has too few rows, NaN or infinity.
    """
    rows = table_rows(table).detach().to("cpu", torch.float64)
    if len(rows) < at_least:
        raise ArgumentError(f"this needs a table of {at_least} rows or more; got {len(rows)}")
    broken = (~rows.isfinite()).any(dim=1).nonzero()
    if len(broken):
        raise ArgumentError(
            f"this needs a table without NaN and infinity; got {len(broken)} such rows, the first is row "
            f"{broken[0].item()}. posembed.check_table lists them; pass the table without them"
        )
    return rows


def extreme_scale(values: Tensor, dim: int | None = None) -> Tensor:
    """Returns the largest absolute value where its square would overflow or vanish, else 1; of all, or along ``dim``.

    Divided by it, values of any scale can be squared.
    """
    if not values.numel():
        return values.new_ones(())
    largest = values.abs().amax() if dim is None else values.abs().amax(dim=dim, keepdim=True)
    return largest.where((largest > 0) & ((largest < 1e-100) | (largest > 1e100)), 1)
