from __future__ import annotations

import math

import numpy as np
import torch

from posembed import SinusoidalPositionalEmbedding
from posembed.tables import sinusoidal_table
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


def test_its_scale_and_the_layout_of_fairseq() -> None:
    layer = SinusoidalPositionalEmbedding(8, scale=0.5, interleaved=False)
    expected = 0.5 * sinusoidal_table(12, 8, interleaved=False)[7:]
    assert_close(layer(torch.zeros(3, 5, 8), offset=7), expected.expand(3, -1, -1))
