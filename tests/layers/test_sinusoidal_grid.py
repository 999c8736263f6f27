"""Sinusoids of a grid: held against MAE's formula in float64, and against their own properties."""

from __future__ import annotations

import pytest
import torch

from posembed.layers import SinusoidalGridEmbedding
from posembed.layers.sinusoidal import grid_sinusoids
from tolerance import assert_close


def mae_rows(height: int, width: int, dim: int) -> torch.Tensor:
    """He et al. 2022's code in float64: of each half all sines, then all cosines; the column's half first."""
    frequencies = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    rows = []
    for r in range(height):
        for c in range(width):
            halves = [place * frequencies for place in (c, r)]
            rows.append(torch.cat([part for angle in halves for part in (angle.sin(), angle.cos())]))
    return torch.stack(rows)


@pytest.mark.parametrize(("height", "width", "dim"), [(1, 1, 4), (3, 5, 8), (4, 4, 32), (2, 7, 12)])
def test_rows_are_maes_in_another_order(height: int, width: int, dim: int) -> None:
    ours = grid_sinusoids((height, width), dim).unflatten(1, (2, dim // 4, 2)).transpose(2, 3).flatten(1)
    assert_close(ours.double(), mae_rows(height, width, dim), dtype=torch.float32)


def test_equal_steps_have_equal_products() -> None:
    """The product of two rows is of the steps between their cells alone, down and across."""
    rows = grid_sinusoids((5, 6), 16).double().view(5, 6, 16)
    for down, across in ((1, 0), (0, 2), (2, 3)):
        products = (rows[: 5 - down, : 6 - across] * rows[down:, across:]).sum(-1)
        assert_close(products, products[0, 0].expand_as(products), dtype=torch.float32)


def test_an_extent_places_the_same_picture_alike() -> None:
    coarse = grid_sinusoids((3, 3), 8).view(3, 3, 8)
    finer = grid_sinusoids((9, 9), 8, extent=(3, 3)).view(9, 9, 8)
    assert_close(finer[1::3, 1::3], coarse)  # the middle of three thirds is where the whole was
    assert torch.equal(grid_sinusoids((3, 3), 8, extent=(3, 3)), coarse.flatten(0, 1))


def test_the_layer_adds_them_to_patches_alone() -> None:
    layer = SinusoidalGridEmbedding(grid=(2, 3), dim=8, special=2, scale=0.5)
    x = torch.randn(4, 8, 8, requires_grad=True)
    out = layer.at_input(x, torch.arange(8))
    assert torch.equal(out[:, :2], x[:, :2])
    assert_close(out[0, 2:] - x[0, 2:], 0.5 * grid_sinusoids((2, 3), 8))
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))  # type: ignore[arg-type]
    assert not layer.state_dict()
    half = layer.half().at_input(torch.zeros(1, 8, 8, dtype=torch.float16), torch.arange(8))
    assert half.dtype == torch.float16
    assert "grid=(2, 3), dim=8, special=2" in repr(layer)
