"""Fixed sinusoids added at the input (Vaswani et al. 2017, arXiv:1706.03762, section 3.5), for texts and images.

PE[p, 2i] = sin(p / 10000^(2i/D)), PE[p, 2i+1] = cos of the same angle. The formula is in tables/fill.py. On a grid,
half of the width encodes the column and half the row (He et al. 2022, arXiv:2111.06377). MAE's code puts all sines of a
half first, which gives the same numbers in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, copy_with
from posembed.layers.images.grid import PatchEncoding
from posembed.settings import Amount, Count, Pair, Positive, Probability
from posembed.tables.fill import check_even, sinusoids


class SinusoidalPositionalEmbedding(InputEncoding):
    """Adds to each token the sinusoids of its position, then applies dropout. It has no weights and no maximum length.

    Args:
        dim: the width D, even.
        scale: the factor on the rows. At 1 their norm is sqrt(D/2). The paper scales the tokens by sqrt(D) instead.
            Either way, rows and tokens should have similar scales.
        base: the base of the wavelengths; 10,000 in the paper.
        interleaved: True alternates sines and cosines (the paper). False puts all sines first (fairseq, tensor2tensor).
        dropout: the probability of dropout after the sum in training.

    Rows are computed in float64 in each call, because a stored table would be cast with the model.

    Raises:
        ArgumentError: an odd dim.

    Examples:
        >>> import torch
        >>> from posembed import SinusoidalPositionalEmbedding
        >>> sinusoidal = SinusoidalPositionalEmbedding(64)
        >>> sinusoidal(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> sinusoidal.rows(torch.tensor([1_000_000])).shape  # every position has a row
        torch.Size([1, 64])
    """

    def __init__(
        self,
        dim: Count,
        *,
        scale: float = 1.0,
        base: Positive = 10000.0,
        interleaved: bool = True,
        dropout: Probability = 0.0,
    ) -> None:
        check_even(dim)
        super().__init__(dim, dropout)
        self.scale, self.base, self.interleaved = scale, base, interleaved

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D), float32, of position_ids of any shape (...)."""
        return self.scale * sinusoids(position_ids, self.dim, base=self.base, interleaved=self.interleaved)

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        return super()._added(x, rows.to(x.dtype))


def grid_sinusoids(grid: tuple[int, int], dim: int, *, extent: tuple[int, int] | None = None) -> Tensor:
    """Returns the sinusoids of all cells of a grid, (H W, D) in float32, row by row.

    extent is the (height, width) over which the cells are spread evenly. None means the grid's own size, which puts
    cell (r, c) at (r, c). With the same extent, a point of the image has the same position on any grid.
    """
    if dim % 4:
        raise ArgumentError(f"dim must be a multiple of 4, a sine and a cosine each for row and column; got {dim}")
    rows, columns = (
        (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) * (wide / count) - 0.5
        for count, wide in zip(grid, extent or grid, strict=True)
    )
    places = torch.cartesian_prod(rows, columns)
    return torch.cat([sinusoids(places[:, axis], dim // 2) for axis in (1, 0)], dim=1)


class SinusoidalGridEmbedding(PatchEncoding):
    """Adds to each patch the sinusoids of its column and row, then applies dropout. It has no weights.

    Args:
        grid: (height, width) in patches.
        dim: the width D, a multiple of 4.
        special: the number of tokens before the patches; nothing is added to them.
        extent: the (height, width) over which the rows and columns are spread evenly, such as the training grid. None
            means ``grid``.
        scale: the factor on the rows. At 1 their norm is sqrt(D/2).
        dropout: the probability of dropout after the sum in training.

    Raises:
        ArgumentError: a width that is not a multiple of 4.
        PositionError: a position past the grid.

    Examples:
        >>> import torch
        >>> from posembed.layers import SinusoidalGridEmbedding
        >>> patches = SinusoidalGridEmbedding(grid=(14, 14), dim=64)
        >>> patches(torch.randn(2, 1 + 14 * 14, 64)).shape
        torch.Size([2, 197, 64])
        >>> patches.on_grid((24, 24)).rows().shape
        torch.Size([577, 64])
    """

    def __init__(
        self,
        *,
        grid: Pair,
        dim: Count,
        special: Amount = 1,
        extent: Pair | None = None,
        scale: float = 1.0,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__(dim, dropout)
        self.grid, self.special, self.extent, self.scale = grid, special, extent, scale
        grid_sinusoids((1, 1), dim)  # raises here, not in forward, for a width it cannot use

    def on_grid(self, grid: Pair, *, shared: bool = False) -> SinusoidalGridEmbedding:
        """Returns this encoding on another grid, whose cells are spread evenly over the same extent."""
        if grid == self.grid:
            return self
        changed = copy_with(self, shared=shared)
        changed.grid, changed.extent = grid, self.extent or self.grid
        return changed

    def rows(self) -> Tensor:
        """Computes the rows (special + H W, D), float32: a stored table would be cast with the model."""
        rows = self.scale * grid_sinusoids(self.grid, self.dim, extent=self.extent)
        return F.pad(rows, (0, 0, self.special, 0))

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
    ) -> Tensor:
        """Adds rows to x (B, L, D), then applies dropout. ``position_ids`` index the tokens of an image.

        Raises:
            PositionError: an index past the grid.
            ArgumentError: ids or offsets that are not integers, or shapes that do not fit.
        """
        rows = self.rows().to(x.device, x.dtype)
        return self._add(x, rows, position_ids, offset, self.grid, "Call on_grid((height, width)) of these images")
