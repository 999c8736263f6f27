"""RoPE for the patches of an image, axial and with mixed learned frequencies (Heo et al. 2024, arXiv:2403.13298).

Pair t of a patch in column x and row y is rotated by the angle theta_x,t x + theta_y,t y. Axial frequencies give half
of the pairs to each axis; mixed frequencies are learned, with any direction in the image. As in the authors' code
(compute_axial_cis and compute_mixed_cis), pairs are interleaved, and tokens before the patches are not rotated.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.layers.base import RotationEncoding, fill_
from posembed.layers.images.grid import ImageEncoding, cells_of
from posembed.layers.rotary import rotary_frequencies, rotate
from posembed.settings import Amount, Count, Pair, Positive


class AxialRotaryEmbedding(ImageEncoding, RotationEncoding):
    """RoPE for images: the first half of the pairs rotates with a patch's column, the second half with its row.

    A position is the index of a token in its image: ``special`` tokens, then the patches row by row.

    Args:
        head_dim: d, the width of one head; a multiple of 4.
        grid: (height, width) of the images in patches.
        extent: the (height, width) over which the rows and columns of any grid are spread evenly. Pass the training
            grid if ``on_grid`` is for the same images at another resolution. None counts patches on any grid, as the
            authors do.
        base: the base of the frequencies base^(-4t/d), t = 0 .. d/4 - 1; 100 in the paper.
        special: the number of tokens before the patches.

    Angles are computed in float32 whatever the model's dtype.

    Raises:
        ArgumentError: a width that is not a multiple of 4.
        PositionError: in a call, a position past the grid.

    Examples:
        >>> import torch
        >>> from posembed.layers import AxialRotaryEmbedding
        >>> rope = AxialRotaryEmbedding(head_dim=16, grid=(14, 14))
        >>> q, k = rope(*torch.randn(2, 1, 4, 1 + 14 * 14, 16))  # (B, H, L, d) each
        >>> rope.on_grid((28, 28)).image_tokens
        785
    """

    def __init__(
        self, *, head_dim: Count, grid: Pair, extent: Pair | None = None, base: Positive = 100.0, special: Amount = 1
    ) -> None:
        super().__init__()
        self.head_dim, self.grid, self.extent, self.base, self.special = head_dim, grid, extent, base, special
        if head_dim % 4:
            raise ArgumentError(f"head_dim must be a multiple of 4, two pairs for row and column; got {head_dim}")

    @property
    def turns_are_final(self) -> bool:
        return True

    def frequencies(self, device: torch.device) -> Float[Tensor, "2 H half"]:
        """Returns the radians per column and per row of each pair, float32 (2, H, d/2). H is 1 if heads are alike."""
        axis = rotary_frequencies(self.head_dim // 2, base=self.base, device=device)
        return torch.block_diag(axis, axis).unsqueeze(1)

    def angles(self, position_ids: Tensor) -> Float[Tensor, "... H L half"]:
        """Returns the angles of the tokens at these positions, float32 (..., H, L, d/2)."""
        cells, extent = cells_of(position_ids, self.grid, self.special), self.extent or self.grid
        row, column = (
            ((cell.float() + 0.5) * (wide / count) - 0.5)[..., None, :, None]
            for cell, count, wide in zip(cells, self.grid, extent, strict=True)
        )
        by_column, by_row = self.frequencies(position_ids.device).unsqueeze(-2)
        angles = column * by_column + row * by_row
        return angles.where((position_ids.long() >= self.special)[..., None, :, None], 0.0)

    def turned(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, text_length: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_positions), self._turn(k, k_positions)

    def _turn(self, x: Tensor, position_ids: Tensor) -> Tensor:
        angles = self.angles(position_ids)
        if angles.size(-3) not in (1, x.size(-3)):  # the query heads of a group share its key head's frequencies
            angles = angles.repeat_interleave(x.size(-3) // angles.size(-3), dim=-3)
        return rotate(x, angles.cos(), angles.sin(), "interleaved")


class MixedRotaryEmbedding(AxialRotaryEmbedding):
    """RoPE with a learned frequency vector, radians per column and per row, for each head and pair.

    All layers share the frequencies. The authors learn frequencies for each layer; to do the same, give each layer its
    own object, in ``posembed.nn.PerLayer``.

    Args:
        head_dim, grid, extent, special: as in ``AxialRotaryEmbedding``.
        heads: the number of key heads H. The query heads of a group share the frequencies of their key head.
        base: the base of the initial frequencies; 10 in the paper. Their magnitudes are those of
            ``AxialRotaryEmbedding``; their directions are random, two perpendicular ones per head.

    The state dict holds ``frequency_weight`` (2, H, d/2): radians per column, then per row.

    Raises:
        ArgumentError, PositionError: as in ``AxialRotaryEmbedding``, or keys with another number of heads.

    Examples:
        >>> import torch
        >>> from posembed.layers import MixedRotaryEmbedding
        >>> rope = MixedRotaryEmbedding(head_dim=16, heads=4, grid=(14, 14))
        >>> q, k = rope(*torch.randn(2, 1, 4, 1 + 14 * 14, 16))
        >>> rope.frequency_weight.shape
        torch.Size([2, 4, 8])
    """

    def __init__(
        self,
        *,
        head_dim: Count,
        heads: Count,
        grid: Pair,
        extent: Pair | None = None,
        base: Positive = 10.0,
        special: Amount = 1,
    ) -> None:
        super().__init__(head_dim=head_dim, grid=grid, extent=extent, base=base, special=special)
        self.heads = heads
        self.frequency_weight = nn.Parameter(torch.empty(2, heads, head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws a direction for each head."""
        direction = 2 * math.pi * torch.rand(self.heads, 1)
        directions = torch.cat((direction, direction + math.pi / 2), dim=1)  # of the two halves of the pairs
        axis = rotary_frequencies(self.head_dim // 2, base=self.base)
        halves = torch.stack((directions.cos(), directions.sin())).unsqueeze(-1) * axis
        fill_(self.frequency_weight, halves.flatten(2))

    def frequencies(self, device: torch.device) -> Tensor:
        return self.frequency_weight.float()

    def turned(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, text_length: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if k.size(-3) != self.heads or q.size(-3) % self.heads:
            raise ArgumentError(
                f"k must be (B, H={self.heads}, L, d), with its own frequencies for each head, and q a multiple of "
                f"them; got {tuple(k.shape)} and {tuple(q.shape)}"
            )
        return super().turned(q, k, q_positions, k_positions, text_length)
