"""Learned positions of image patches: one table (Dosovitskiy et al. 2021), or a height and a width table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.arguments import Float, Integer, checked
from posembed.errors import ArgumentError, PositionError
from posembed.layers.base import InputEncoding, PositionEncoding, adopted, copy_with, fill_, refuse_given
from posembed.positions.checks import check_positions
from posembed.settings import Amount, Count, NotNegative, Pair, Probability
from posembed.tables.fill import initial_rows
from posembed.tables.layout import TableLayout
from posembed.tables.modules import table_of_module, table_of_state_dict
from posembed.tables.resize import resize_table
from posembed.tables.rows import table_rows


def cells_of(position_ids: Tensor, grid: tuple[int, int], special: int) -> tuple[Tensor, Tensor]:
    """Returns the row and column of the tokens at these positions in the image; 0 for the ``special`` first tokens.

    Raises PositionError for a position past the grid.
    """
    height, width = grid
    cells = (check_positions(position_ids, special + height * width) - special).clamp(min=0)
    return cells // width, cells % width


ImageT = TypeVar("ImageT", bound="ImageEncoding")


class ImageEncoding(PositionEncoding):
    """The base class of image encodings. A position is the index of a token in an image of ``grid`` patches.

    The tokens are ``special`` tokens, such as [CLS], then the patches row by row.
    """

    grid: tuple[int, int]
    special: int

    @property
    def image_tokens(self) -> int:
        """The number of tokens of an image of this grid."""
        return self.special + math.prod(self.grid)

    def on_grid(self: ImageT, grid: Pair, *, shared: bool = False) -> ImageT:
        """Returns this encoding for another grid. Neighbouring rows and columns stay as far apart as before."""
        if grid == self.grid:
            return self
        changed = copy_with(self, shared=shared)
        changed.grid = grid
        return changed


class PatchEncoding(InputEncoding, ImageEncoding):
    """The base class of image encodings with a row for each token of an image."""

    def _add(
        self, x: Tensor, rows: Tensor, position_ids: Tensor | None, offset: int | Tensor, grid: tuple[int, int],
        remedy: str,
    ) -> Tensor:  # fmt: skip
        """Adds the rows (N, D) of all N tokens of a grid, or the rows at the given indices, to x (B, L, D)."""
        ids = self._ids(x, position_ids, offset)
        if position_ids is not None or isinstance(offset, Tensor) or offset:
            rows = F.embedding(check_positions(ids, len(rows)), rows)
        elif x.shape[1] != len(rows):
            height, width = grid
            raise ArgumentError(
                f"x must be (B, {len(rows)}, D={self.dim}), {len(rows) - height * width} special tokens and {height} "
                f"x {width} patches; got {tuple(x.shape)}. {remedy}, or pass position_ids"
            )
        return self._added(x, rows)


GridT = TypeVar("GridT", bound="LearnedGridEmbedding")


class LearnedGridEmbedding(PatchEncoding):
    """Adds to each patch the trained row of its place in the grid, then applies dropout.

    The tokens are, in order: ``layout.prefix`` special tokens with their own rows (class, distillation), ``registers``
    tokens without rows (register tokens, Darcet et al. 2024, or a class token without a position), the patches row by
    row, and ``layout.tail`` special tokens.

    Args:
        grid: (height, width) of the table in patches, H x W.
        dim: the width D.
        factorized: True adds a row of a height table and one of a width table, H + W rows instead of H x W (Dehghani
            et al. 2023, NaViT). The state dict then holds ``height_weight`` (H, D), ``width_weight`` (W, D) and
            ``special_weight`` (prefix + tail, D); otherwise only ``weight`` (prefix + H W + tail, D).
        layout: the special tokens, as in ``TableLayout.VIT`` (class) or ``TableLayout.DEIT`` (class and distillation).
        registers: the number of tokens without a position between the prefix and the patches.
        dropout, init, std: as in LearnedPositionalEmbedding. A table as ``init`` must have the shape of ``weight``.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed import LearnedGridEmbedding
        >>> patches = LearnedGridEmbedding(grid=(14, 14), dim=64)  # ViT: a class token, then 14 x 14 patches
        >>> patches(torch.randn(2, 1 + 14 * 14, 64)).shape
        torch.Size([2, 197, 64])
        >>> patches(torch.randn(2, 1 + 10 * 12, 64), grid=(10, 12)).shape  # smaller images
        torch.Size([2, 121, 64])
        >>> patches.on_grid((24, 24)).rows().shape
        torch.Size([577, 64])
    """

    def __init__(
        self,
        *,
        grid: Pair,
        dim: Count,
        factorized: bool = False,
        layout: TableLayout = TableLayout.VIT,
        registers: Amount = 0,
        dropout: Probability = 0.1,
        init: str | Tensor = "normal",
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(dim, dropout)
        if layout.reserved or layout.grid not in (None, grid):
            raise ArgumentError(f"the layout of a {grid} grid has no reserved rows and no other grid; got {layout}")
        if factorized and not isinstance(init, str):
            raise ArgumentError("a factorized grid has two tables: give a name as init and load them afterwards")
        self.layout = layout.on_grid(*grid)
        self.grid, self.factorized, self.registers = grid, factorized, registers
        self.std, self.init = std, init if isinstance(init, str) else "given"
        if factorized:
            self.height_weight = nn.Parameter(torch.empty(grid[0], dim))
            self.width_weight = nn.Parameter(torch.empty(grid[1], dim))
            self.special_weight = nn.Parameter(torch.empty(layout.prefix + layout.tail, dim))
        else:
            self.weight = nn.Parameter(torch.empty(self.layout.rows(grid[0] * grid[1]), dim))
        self._fill(init)

    @classmethod
    def from_state_dict(
        cls: type[GridT],
        state_dict: Mapping[str, Any],
        *,
        grid: Pair,
        key: str | None = None,
        layout: TableLayout = TableLayout.VIT,
        **arguments: Any,
    ) -> GridT:
        """Builds the layer with the position table of a state dict, as ``LearnedPositionalEmbedding`` does.

        The grid is never guessed from the number of rows. A factorized grid is not supported.
        """
        return cls._around(table_of_state_dict(state_dict, key), grid, layout, arguments)

    @classmethod
    def from_module(
        cls: type[GridT],
        module: nn.Module,
        *,
        grid: Pair,
        key: str | None = None,
        layout: TableLayout = TableLayout.VIT,
        **arguments: Any,
    ) -> GridT:
        """Builds the layer with a module's position table, like ``from_state_dict``, and keeps ``requires_grad``."""
        return cls._around(table_of_module(module, key, layout)[0], grid, layout, arguments)

    @classmethod
    def _around(
        cls: type[GridT], table: Tensor, grid: tuple[int, int], layout: TableLayout, arguments: dict[str, Any]
    ) -> GridT:
        refuse_given(arguments, "dim", "init", "std")
        if arguments.get("factorized"):
            raise ArgumentError("a factorized grid has two tables; got one. Build the layer and call load_state_dict")
        dim = table_rows(table).shape[1]
        return adopted(cls(grid=grid, dim=dim, layout=layout, init="zero", **arguments), table)

    def reset_parameters(self) -> None:
        """Draws new tables."""
        self._fill(self.init)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        position_ids: Integer[Tensor, "... L"] | None = None,
        *,
        offset: int | Tensor = 0,
        grid: Pair | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Adds rows to x (B, prefix + registers + H W + tail, D), then applies dropout.

        Args:
            position_ids: the index of each token in its image, (L,), (1, L) or (B, L), if x lacks some of the
                tokens. By default, x has all tokens in order.
            offset: the number of earlier tokens in the image, if x starts after them: a number, or (B,).
            grid: (H, W) of these images, if it differs from the table's. Patch (r, c) reads the row of cell (r, c).

        Raises:
            PositionError: images with more patches than the table in either direction, or an index outside the image.
            ArgumentError: a number of tokens that does not fit the grid, which is never guessed.
        """
        grid = self.grid if grid is None else grid
        return self._add(x, self.rows(grid), position_ids, offset, grid, "Pass grid=(height, width) of these images")

    def rows(self, grid: Pair | None = None) -> Float[Tensor, "N D"]:
        """Returns the rows of all tokens of images with this grid: (prefix + registers + H W + tail, D)."""
        height, width = self.grid if grid is None else checked("grid", grid, Pair)
        if height > self.grid[0] or width > self.grid[1]:
            raise PositionError(
                f"a grid of {height} x {width} patches has cells without a row: this table holds "
                f"{self.grid[0]} x {self.grid[1]}. Shrink the images, or resize the table (posembed.resize_table, "
                "posembed resize --grid)"
            )
        if self.factorized:
            prefix, tail = self.special_weight.split((self.layout.prefix, self.layout.tail))
            patches = (self.height_weight[:height, None] + self.width_weight[:width]).flatten(0, 1)
        else:
            prefix, cells, tail = self.layout.split(self.weight)
            patches = cells.unflatten(0, self.grid)[:height, :width].flatten(0, 1)
        registers = patches.new_zeros(self.registers, self.dim)
        return torch.cat((prefix, registers, patches, tail))

    def table(self) -> Tensor:
        """Returns the rows (prefix + H W + tail, D). A factorized cell's row is its height row plus its width row."""
        if not self.factorized:
            return self.weight
        rows = self.rows()
        return torch.cat((rows[: self.layout.prefix], rows[self.layout.prefix + self.registers :]))

    def on_grid(self, grid: Pair, *, shared: bool = False) -> LearnedGridEmbedding:
        """Returns this table resized to another grid, bicubically with antialiasing, as timm does.

        Each table of a factorized grid is resized along its own axis. Special tokens keep their rows.
        """
        if grid == self.grid:
            return self
        if self.factorized:
            height, width = _resized_side(self.height_weight, grid[0]), _resized_side(self.width_weight, grid[1])
            changed = copy_with(self, shared=shared, height_weight=height, width_weight=width)
        else:
            weight = resize_table(self.weight, grid=grid, layout=self.layout)
            changed = copy_with(self, shared=shared, weight=weight)
        changed.grid, changed.layout = grid, self.layout.on_grid(*grid)
        return changed

    @property
    def image_tokens(self) -> int:
        return self.layout.rows(self.grid[0] * self.grid[1]) + self.registers

    def _fill(self, init: str | Tensor) -> None:
        if not self.factorized:
            cells = self.grid[0] * self.grid[1]
            fill_(self.weight, initial_rows(init, self.layout, cells, self.dim, std=self.std))
            return
        for table in (self.height_weight, self.width_weight, self.special_weight):
            if len(table):
                fill_(table, initial_rows(init, TableLayout(), len(table), self.dim, std=self.std))


def _resized_side(rows: Tensor, length: int) -> Tensor:
    """Resizes the rows (N, D) of one axis of a grid to (length, D), with the default method for grids."""
    # A grid of height 1: PyTorch's antialiasing gives wrong rows for an output of width 1 (2.13, CPU).
    return resize_table(rows, grid=(1, length), layout=TableLayout().on_grid(1, len(rows)))
