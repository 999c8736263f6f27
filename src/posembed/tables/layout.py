"""Layouts of a table: which rows belong to positions, and which come before or after them.

    row      0 ... reserved-1 | ... prefix ... | position 0 ... position length-1 | ... tail ...

Position 0 is row 0 in BERT and row ``pad_token_id + 1`` in RoBERTa; a ViT's table starts with the class token's
row and continues as a grid.

The positions of a table lie along axes. A text has one axis, an image has height and width, a video also has time, and
a spectrogram has frequency and time. An axis of n cells has n rows, or 2 n - 1 rows if each row stands for a
difference of two positions. The last axis changes fastest:

    text            no axes: one axis of any length     BERT (512, D)
    image           height, width                       ViT (1, 1 + 14 * 14, D), SAM (1, 64, 64, D)
    video           time, height, width                 ViViT (1, 1 + 16 * 14 * 14, D)
    sound           frequency, time                     AST (1, 2 + 12 * 101, D)
    differences     height, width, both relative        Swin (13 * 13, H), BEiT (27 * 27 + 3, H)
    one axis        height, relative                    SAM's rel_pos_h (127, D / H)
    limited         backward, forward                   wav2vec2-BERT (64 + 9, D / H)

Limited differences -b .. f - 1 of two positions in a line have two sides: the b distances backward, and the f distances
0 .. f - 1 forward. For every difference beyond these, a model reads the first or the last row. The rows of the two
sides follow each other, so their numbers of rows are added, not multiplied as for other axes.

A tensor may store these rows in other ways: with one dimension per axis, or with the heads first. ``TableLayout.dims``
names the dimensions of the tensor that enumerate the positions; ``rows_in`` turns any such tensor into rows (N, D), and
``stored`` turns rows back into the tensor. All other code reads rows (N, D). Mllama stores a table for each tile of an
image in one dimension, one after the other (``columns``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from posembed.arguments import Float, checks_arguments, explains_errors
from posembed.errors import ArgumentError
from posembed.settings import Amount, Count, Pair
from posembed.tables.rows import as_table, table_rows

PADDING = -1
"""The position of a padding token, -1: pass it as ``padding=`` to ``posembed.positions.from_mask`` or
``from_token_ids``. A table with a pad row reads that row for this position; other tables raise PositionError."""


@checks_arguments
@dataclass(frozen=True)
class Axis:
    """One axis of a table's positions.

    Args:
        name: "height" and "width" (image), "time" (video), "frequency" and "time" (sound), or any other name.
        size: n, the number of positions along the axis.
        relative: whether the rows stand for the 2 n - 1 differences -(n - 1) .. n - 1 of two positions, not for n
            positions.
        signed: False if relative rows stand for the n distances 0 .. n - 1 instead, as in LeViT.

    Raises:
        ArgumentError: a name that is not text, a size below 1, or ``signed=False`` without ``relative=True``.

    Examples:
        >>> from posembed.tables import Axis
        >>> Axis("height", 14).rows, Axis("height", 14, relative=True).rows
        (14, 27)
    """

    name: str
    size: Count
    relative: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ArgumentError(f'the name of an axis is a text such as "height"; got {self.name!r}')
        if not (self.relative or self.signed):
            raise ArgumentError(
                f"signed=False needs relative=True, for distances of cells; {self.name} got relative=False"
            )

    @property
    def rows(self) -> int:
        """The number of rows along the axis: n, or 2 n - 1 differences."""
        return 2 * self.size - 1 if self.relative and self.signed else self.size

    def __str__(self) -> str:
        of = f"of {self.name}"
        return (
            f"{self.rows} {'differences' if self.signed else 'distances'} {of}"
            if self.relative
            else f"{self.size} {of}"
        )


IMAGE_AXES = ("height", "width")
SIDES = ("backward", "forward")


@checks_arguments
@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """The roles of the rows of a table (N, D). By default row i is position i.

    Args:
        reserved: the number of leading rows that no position reads (fairseq counts positions from ``pad_id + 1``).
        pad_row: the reserved row that padding reads, or None if the model has none.
        prefix: the number of rows of special tokens before the positions (class, distillation).
        grid: (height, width) if the positions form a grid, stored row by row; None for a sequence and for a grid of
            unknown size.
        tail: the number of rows of special tokens after the positions.
        axes: the axes of the positions, the last one changing fastest; () for a sequence of any length. A grid is
            the axes height and width: give ``grid`` or ``axes``, not both.
        dims: the dimensions of the stored tensor that enumerate the positions: one for all axes, or one for each. ()
            for tables (N, D), (1, N, D) and (N, 1, D).
        columns: None, or the width D of a row if the last dimension stores whole tables (N, D) one after the other.
            ``dims`` then names this dimension.

    "Length" always means the number of positions that the table holds. On relative axes, it counts differences.

    Raises:
        ArgumentError: numbers that no table can have, a pad_row that is not reserved, an unknown or repeated axis or
            dimension, a grid that disagrees with the axes, special tokens in a table with a dimension for each axis,
            or columns without their dimension.

    Examples:
        >>> import torch
        >>> from posembed.tables import Axis, TableLayout
        >>> layout = TableLayout.roberta(pad_id=1)
        >>> layout.length(514)  # 514 rows hold 512 positions
        512
        >>> layout.rows_of(torch.tensor([0, 1, 2])).tolist()
        [2, 3, 4]
        >>> window = (Axis("height", 7, relative=True), Axis("width", 7, relative=True))
        >>> TableLayout(axes=window).length(169)  # a Swin Transformer's differences in a window of 7 x 7
        169
    """

    reserved: Amount = 0
    pad_row: int | None = None
    prefix: Amount = 0
    grid: Pair | None = None
    tail: Amount = 0
    axes: tuple[Axis, ...] = ()
    dims: tuple[int, ...] = ()
    columns: Count | None = None

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
        if self.pad_row is not None and not 0 <= self.pad_row < self.reserved:
            raise ArgumentError(
                f"pad_row must be one of the {self.reserved} reserved rows; got {self.pad_row}. "
                "Raise reserved, or leave pad_row out"
            )
        for name, values in (("axes", [axis.name for axis in self.axes]), ("dims", self.dims)):
            if len(set(values)) < len(values):
                raise ArgumentError(f"each of the {name} occurs once; got {', '.join(map(str, values))}")
        self._match_grid_and_axes()
        if len(self.dims) > 1 and (len(self.dims) != len(self.axes) or self.front or self.tail):
            raise ArgumentError(
                f"dims gives one dimension for each axis, without rows of special tokens; got dims={self.dims} for "
                f"{len(self.axes)} axes and {self.front + self.tail} other rows"
            )
        if self.columns is not None and not (len(self.dims) == 1 and self.axes):
            raise ArgumentError(
                f"columns is the width of a row, for axes in one dimension; got columns={self.columns!r} for "
                f"{len(self.axes)} axes and dims={self.dims}"
            )

    def _match_grid_and_axes(self) -> None:
        """Gives a grid its axes, and the axes height and width their grid."""
        if self.grid is not None and not self.axes:
            object.__setattr__(self, "axes", tuple(map(Axis, IMAGE_AXES, self.grid)))
        image = tuple(axis.name for axis in self.axes) == IMAGE_AXES and not any(axis.relative for axis in self.axes)
        grid = tuple(axis.size for axis in self.axes) if image else None
        if self.grid is not None and tuple(self.grid) != grid:
            raise ArgumentError(f"grid={self.grid} is not the axes {self.axes}; pass one of both")
        object.__setattr__(self, "grid", grid)

    @classmethod
    @checks_arguments
    def roberta(cls, pad_id: Amount = 1) -> TableLayout:
        """Returns the layout of RoBERTa, XLM-R, CamemBERT, Longformer: padding in row ``pad_id``, then position 0."""
        return cls(reserved=pad_id + 1, pad_row=pad_id)

    def on_grid(self, height: int, width: int) -> TableLayout:
        """Returns the same layout with this grid."""
        return replace(self, grid=(height, width), axes=())

    @checks_arguments
    def resized(self, sizes: Mapping[str, int]) -> TableLayout:
        """Returns the same layout with other sizes of the axes with these names.

        Raises:
            ArgumentError: a name that no axis has.
        """
        names = [axis.name for axis in self.axes]
        if unknown := [name for name in sizes if name not in names]:
            raise ArgumentError(f"expected sizes of the axes {', '.join(names) or '(none)'}; got {', '.join(unknown)}")
        axes = tuple(replace(axis, size=sizes.get(axis.name, axis.size)) for axis in self.axes)
        return replace(self, axes=axes, grid=None)

    def __str__(self) -> str:
        """Formats the constructor call, leaving out default values."""
        shown = [f for f in fields(self) if not (f.name == "axes" and self.grid)]
        given = ((f.name, getattr(self, f.name)) for f in shown if getattr(self, f.name) != f.default)
        return f"TableLayout({', '.join(f'{name}={value}' for name, value in given)})"

    @property
    def front(self) -> int:
        """The number of rows before position 0, which is also the row number of position 0."""
        return self.reserved + self.prefix

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows along each axis; limited differences have one axis. () for a sequence of any length."""
        rows = tuple(axis.rows for axis in self.axes)
        return (sum(rows),) if are_sides(self.axes) else rows

    @explains_errors
    def rows_in(self, tensor: Tensor) -> Tensor:
        """Returns the rows (N, D) of a stored table. D is the product of all dimensions other than ``dims``.

        Raises:
            ArgumentError: a tensor that is not floating, or lacks these dimensions.
        """
        if not self.dims:
            return table_rows(tensor)
        count = len(self.dims)
        lowest, highest = min(self.dims), max(self.dims)
        if not tensor.is_floating_point() or lowest < -tensor.dim() or highest >= tensor.dim():
            raise ArgumentError(
                f"the positions of this layout lie in dimensions {self.dims} of a floating tensor; got {tensor.dtype} "
                f"of shape {tuple(tensor.shape)}"
            )
        if self.columns is not None:
            length = self.rows(math.prod(self.shape))
            if self.dims[0] not in (-1, tensor.dim() - 1) or tensor.shape[-1] % (length * self.columns):
                raise ArgumentError(
                    f"the last dimension of this table holds tables of {length} rows and {self.columns} columns; got "
                    f"{tuple(tensor.shape)} and dims={self.dims}"
                )
            return tensor.unflatten(-1, (-1, length, self.columns)).movedim(-2, 0).flatten(1)
        rows = tensor.movedim(self.dims, tuple(range(count)))
        return rows.reshape(math.prod(rows.shape[:count]), math.prod(rows.shape[count:]))

    def stored(self, rows: Tensor, like: Tensor) -> Tensor:
        """Returns rows (N, D) as the tensor that stores them: the inverse of ``rows_in``.

        like: a tensor of the same table at any size. It gives the dimensions that do not enumerate positions.
        """
        if not self.dims:
            return as_table(rows, like)
        if self.columns is not None:
            return rows.unflatten(1, (*like.shape[:-1], -1, self.columns)).movedim(0, -2).flatten(-3).contiguous()
        count = len(self.dims)
        others = like.movedim(self.dims, tuple(range(count))).shape[count:]
        cells = rows.reshape(*(self.shape if count > 1 else rows.shape[:1]), *others)
        return cells.movedim(tuple(range(count)), self.dims).contiguous()

    @property
    def axes_in_words(self) -> str:
        return f"a grid of {self.grid[0]} x {self.grid[1]}" if self.grid else " x ".join(map(str, self.axes))

    @explains_errors
    def rows(self, length: int) -> int:
        """Returns the number of rows that a table needs to hold this many positions."""
        if self.axes and length != (cells := math.prod(self.shape)):
            raise ArgumentError(
                f"{self.axes_in_words} holds {cells} positions; got a length of {length}. Pass the "
                f"{'grid' if self.grid else 'axes'} that {'belongs' if self.grid else 'belong'} to this table"
            )
        return self.front + length + self.tail

    @explains_errors
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

    @explains_errors
    def split(self, table: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor, Tensor]:
        """Splits a table (N, D) into three views: rows before the positions, rows of positions, rows after them."""
        length = self.length(table.shape[0])
        return table[: self.front], table[self.front : self.front + length], table[self.front + length :]

    @explains_errors
    def rows_of(self, position_ids: Tensor) -> Tensor:
        """Returns the row numbers of position_ids, integers of any shape. ``PADDING`` becomes the pad row."""
        if position_ids.dtype != torch.int64:  # a small dtype may not hold the row number, or PADDING
            position_ids = position_ids.to(torch.int64)
        rows = position_ids + self.front
        if self.pad_row is None:
            return rows
        return torch.where(position_ids == PADDING, self.pad_row, rows)


def are_sides(axes: Sequence[Axis]) -> bool:
    """Returns whether axes are the two sides of limited differences."""
    return tuple(axis.name for axis in axes) == SIDES


TableLayout.BERT = TableLayout.GPT2 = TableLayout.WHISPER = TableLayout.CLIP_TEXT = TableLayout()
TableLayout.BART = TableLayout.OPT = TableLayout(reserved=2, pad_row=1)
TableLayout.VIT = TableLayout.CLIP_VISION = TableLayout(prefix=1)
TableLayout.DEIT = TableLayout(prefix=2)
