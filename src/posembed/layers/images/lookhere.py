"""LookHere: heads that look in one direction of the image (Fuller et al. 2024, arXiv:2405.13985).

A directed head sees only the patches in a cone from its query, and adds a penalty on the distance to the scores:

    bias(h, i, j) = -slope * slope_h * ||p_i - p_j||    if patch j is in the cone of head h at patch i, else -inf

p is (column, row) in patches. The paper's equations 1 and 2 define the penalty without a sign, and the paper subtracts
it. Tokens before the patches, such as [CLS], have no bias, neither as queries nor as keys.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posembed.layers.base import ScoreMod
from posembed.layers.images.grid import ImageEncoding
from posembed.layers.score_bias import Formula, ScoreBias
from posembed.positions.checks import check_positions
from posembed.settings import Amount, Count, Pair, Positive

COMPASS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
"""Directions (columns, rows) in steps of 45 degrees, clockwise from the right; rows count downward."""

Angle = Literal[180, 90, 45]
CONES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    180: ((4, 0, 2, 6), (4, 0, 2, 6)),  # up, down, left, right
    90: ((4, 6, 2, 0), (5, 1, 3, 7)),  # the four corners; up, down, left, right
    45: ((5, 2, 4, 7), (6, 1, 3, 0)),
}
"""Maps the angle of the cones to the first direction of each cone, an index in ``COMPASS``, for two groups of heads."""


def directed_heads(heads: int, angle: Angle) -> list[tuple[int, float]]:
    """Returns each head's first direction (an index in ``COMPASS``; -1 if the head sees all patches) and slope.

    For 12 and 16 heads these are the authors' 8 and 12 directed and 4 undirected heads.
    """
    undirected = heads // 3 // 2 * 2
    second = (heads - undirected) // 8 * 4
    first = heads - undirected - second
    groups = (
        (first, 0),
        (second, first if angle == 180 else 0),
    )  # halves continue in one group, with one row of slopes
    cones = [
        (CONES[angle][group][head % 4], 2.0 ** -((head + before) // 4 + 1))
        for group, (count, before) in enumerate(groups)
        for head in range(count)
    ]
    each = max(1, -(-undirected // 4))
    return [*cones, *((-1, 4.0 ** -(head // each + 1)) for head in range(undirected))]


class LookHere(ImageEncoding, ScoreBias):
    """LookHere (arXiv:2405.13985). Directed heads see only a cone of patches and penalize distance. Nothing is learned.

    Args:
        heads: the number of heads H. A third, rounded down to an even number, are undirected: they see all patches.
        grid: (height, width) of the images in patches. ``on_grid`` gives a copy for another grid.
        angle: the angle of the cones in degrees: 180, 90 or 45 (LookHere-180, -90 and -45).
        slope: the factor on all slopes. The authors' factor falls from 1.5 in the first layer to .5 in the last; to do
            the same, give each layer its own LookHere, in ``posembed.nn.PerLayer``. The default, 1, is their mean.
        special: the number of tokens before the patches.

    Raises:
        ArgumentError: an argument that cannot be used.
        PositionError: in a call, a position past the grid.

    Examples:
        >>> from posembed.layers import LookHere
        >>> bias = LookHere(heads=12, grid=(14, 14))(1 + 14 * 14)  # (H, L, L), to add to the scores
        >>> bias[0, 30, [16, 17, 29, 31]].tolist()  # head 0 looks to the upper left of patch (2, 1)
        [-0.5, -inf, -0.5, -inf]
    """

    def __init__(
        self, *, heads: Count, grid: Pair, angle: Angle = 90, slope: Positive = 1.0, special: Amount = 1
    ) -> None:
        super().__init__(heads)
        self.grid, self.angle, self.slope, self.special = grid, angle, slope, special

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return super().at_scores(*self._checked(q_positions, k_positions))

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod:
        return super().score_mod(*self._checked(q_positions, k_positions))

    def formula(self, device: torch.device) -> Formula:
        heads = directed_heads(self.heads, self.angle)
        ends = [
            (COMPASS[start], COMPASS[(start + self.angle // 45) % 8]) if start >= 0 else ((0, 0), (0, 0))
            for start, _ in heads
        ]
        first, last = torch.tensor(ends, device=device).unbind(1)
        slopes = -self.slope * torch.tensor([slope for _, slope in heads], dtype=torch.float32, device=device)
        (_, width), special = self.grid, self.special

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            q_cell, k_cell = q - special, k - special
            columns, rows = k_cell % width - q_cell % width, k_cell // width - q_cell // width
            clockwise = first[head, 0] * rows - first[head, 1] * columns >= 0
            in_cone = clockwise & (columns * last[head, 1] - rows * last[head, 0] >= 0)
            distance = (columns * columns + rows * rows).float().sqrt()
            seen = torch.where(in_cone, slopes[head] * distance, float("-inf"))
            return torch.where((q_cell < 0) | (k_cell < 0), 0.0, seen)

        return bias

    def _checked(self, *positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(check_positions(ids, self.image_tokens) for ids in positions)
