"""LookHere: the authors' numbers, cones in all directions, and other grids."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posembed.errors import ArgumentError, PositionError
from posembed.layers import LookHere
from together import together
from tolerance import assert_close

NO = -math.inf
# create_lh_layer_tensor of the authors' lookhere.py for 12 heads "eighths1-eighths2-none" on a 2 x 3 grid: heads 1, 6
# and 10, patches 1 and 5, negated as in create_lh_bias_tensor.
AUTHORS = [
    [[0.0, NO, NO, NO, NO, NO], [-0.707106781, -0.5, NO, NO, 0.0, NO]],
    [[0.0, NO, NO, -0.5, -0.707106781, NO], [NO, NO, NO, NO, 0.0, NO]],
    [
        [0.0, -0.0625, -0.125, -0.0625, -0.088388348, -0.139754249],
        [-0.088388348, -0.0625, -0.088388348, -0.0625, 0.0, -0.0625],
    ],
]
# The centres of the authors' cones in degrees, counterclockwise from the right, in the order of their heads.
CENTRES = {
    180: (90, 270, 180, 0) * 2,
    90: (135, 45, 225, 315, 90, 270, 180, 0),
    45: (112.5, 247.5, 157.5, 22.5, 67.5, 292.5, 202.5, 337.5),
}
SLOPES = {180: [0.5] * 4 + [0.25] * 4, 90: [0.5] * 8, 45: [0.5] * 8}


def oracle(grid: tuple[int, int], angle: int) -> np.ndarray:
    """The bias of 12 heads between patches, in float64: the angle of each patch seen from each query."""
    rows, columns = (axis.flatten() for axis in np.indices(grid))
    up, right = rows[:, None] - rows[None], columns[None] - columns[:, None]
    distance, direction = np.hypot(up, right), np.degrees(np.arctan2(up, right))
    heads = []
    for centre, slope in zip(CENTRES[angle], SLOPES[angle], strict=True):
        apart = np.abs((direction - centre + 180) % 360 - 180)
        heads.append(np.where((apart <= angle / 2 + 1e-9) | (distance == 0), -slope * distance, NO))
    return np.stack([*heads, *(-(4.0**-n) * distance for n in (1, 2, 3, 4))])


@together("angle", [180, 90, 45])
@together("grid", [(4, 4), (3, 5), (6, 2)])
def test_it_is_the_formula(angle: int, grid: tuple[int, int]) -> None:
    bias = LookHere(heads=12, grid=grid, angle=angle, slope=1.5)(1 + math.prod(grid))  # type: ignore[arg-type]
    assert not bias[:, 0].any()
    assert not bias[:, :, 0].any()
    assert_close(bias[:, 1:, 1:].numpy(), 1.5 * oracle(grid, angle), dtype=torch.float32)


def test_the_authors_numbers() -> None:
    bias = LookHere(heads=12, grid=(2, 3), angle=45)(7)[:, 1:, 1:]
    assert_close(bias[[0, 5, 9]][:, [0, 4]], torch.tensor(AUTHORS))


@together(("heads", "directed"), [(1, 1), (2, 2), (4, 4), (6, 4), (12, 8), (16, 12)])
def test_directed_heads(heads: int, directed: int) -> None:
    """The first heads hide something from some patch, the last ones nothing; 12 and 16 as the authors have them."""
    bias = LookHere(heads=heads, grid=(4, 4))(17)
    hides = bias.isneginf().flatten(1).any(dim=1)
    assert hides.tolist() == [True] * directed + [False] * (heads - directed)
    assert not bias.isneginf().all(dim=-1).any()


def test_larger_grids_count_on() -> None:
    layer = LookHere(heads=4, grid=(3, 4))
    larger = layer.on_grid((6, 8))
    where = torch.cat((torch.zeros(1).long(), 1 + torch.arange(48).view(6, 8)[:3, :4].flatten()))
    assert torch.equal(larger.at_scores(where, where), layer(13))
    assert torch.equal(larger.on_grid((3, 4))(13), layer(13))
    with pytest.raises(PositionError):
        layer(14)
    with pytest.raises(ArgumentError, match="angle"):
        LookHere(heads=4, grid=(3, 4), angle=60)  # type: ignore[arg-type]
