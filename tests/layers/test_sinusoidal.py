from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posembed import SinusoidalPositionalEmbedding
from posembed.errors import ArgumentError
from together import together
from tolerance import assert_close


def oracle(position: int, dim: int, base: float = 10000.0) -> np.ndarray:
    row = np.empty(dim, dtype=np.float64)
    for i in range(dim // 2):
        angle = position / base ** (2 * i / dim)
        row[2 * i], row[2 * i + 1] = math.sin(angle), math.cos(angle)
    return row


@together("dim", [2, 6, 64])
@together("position", [0, 1, 511, 100_003, -4])
def test_rows_are_the_formula(dim: int, position: int) -> None:
    rows = SinusoidalPositionalEmbedding(dim).rows(torch.tensor([position]))
    assert_close(rows[0].double().numpy(), oracle(position, dim), dtype=torch.float32)


def test_the_two_layouts_for_position_1() -> None:
    one = torch.tensor([1])
    paper = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    fairseq = [math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4)]
    assert_close(SinusoidalPositionalEmbedding(4).rows(one)[0].tolist(), paper, dtype=torch.float32)
    assert_close(
        SinusoidalPositionalEmbedding(4, interleaved=False).rows(one)[0].tolist(), fairseq, dtype=torch.float32
    )


@pytest.mark.parametrize("dim", [1, 7])
def test_an_odd_width_is_refused(dim: int) -> None:
    with pytest.raises(ArgumentError, match=f"even.*{dim}"):
        SinusoidalPositionalEmbedding(dim)


def test_products_of_rows_depend_on_distance_alone() -> None:
    rows = SinusoidalPositionalEmbedding(32).rows(torch.arange(50)).double()
    products = rows @ rows.T
    for distance in (1, 7, 30):
        diagonal = products.diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal), dtype=torch.float32)


def test_offset_and_ids_agree_and_scale_scales() -> None:
    layer = SinusoidalPositionalEmbedding(8, scale=0.5)
    x = torch.randn(3, 5, 8)
    ids = torch.arange(7, 12)
    assert torch.equal(layer(x, offset=7), layer(x, ids))
    assert torch.equal(layer(x, offset=7), layer(x, ids.expand(3, 5)))
    assert_close(layer(x, ids) - x, 0.5 * SinusoidalPositionalEmbedding(8).rows(ids).expand(3, 5, 8))


def test_bfloat16_models_keep_every_position_apart() -> None:
    layer = SinusoidalPositionalEmbedding(64).to(torch.bfloat16)
    x = torch.zeros(1, 600, 64, dtype=torch.bfloat16)
    rows = layer(x)[0]
    assert rows.dtype == torch.bfloat16
    assert len(torch.unique(rows.float(), dim=0)) == 600
