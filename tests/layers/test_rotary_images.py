"""RoPE on a grid of patches: the authors' numbers, relative positions, heads that share keys, and other grids."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posembed.errors import ArgumentError, PositionError
from posembed.layers import AxialRotaryEmbedding, MixedRotaryEmbedding
from posembed.nn import Attention
from together import together
from tolerance import assert_close, close

GRID = (4, 5)
KINDS = ["axial", "mixed"]


def rope(kind: str, grid: tuple[int, int] = GRID, heads: int = 2) -> AxialRotaryEmbedding:
    if kind == "axial":
        return AxialRotaryEmbedding(head_dim=8, grid=grid)
    return MixedRotaryEmbedding(head_dim=8, heads=heads, grid=grid)


# rope-vit's self-attn/rope_self_attn.py on x = 1 .. 8 at column 2, row 1 of a 2 x 3 grid; mixed with FREQUENCIES.
FREQUENCIES = [[[0.5, -0.25, 0.125, 1.0]], [[-0.75, 0.5, 0.25, 0.0625]]]
AXIAL = [-2.2347417, 0.0770037, 2.1455226, 4.5162745, -2.3473144, 7.4491682, 6.1663618, 8.6588678]
MIXED = [0.4741045, 2.1852288, 3.0, 4.0, 1.5113595, 7.6626229, -10.3571377, 2.3936813]


@pytest.mark.parametrize(("kind", "expected"), [("axial", AXIAL), ("mixed", MIXED)])
def test_the_authors_numbers(kind: str, expected: list[float]) -> None:
    layer = rope(kind, (2, 3), heads=1)
    layer.load_state_dict({} if kind == "axial" else {"frequency_weight": torch.tensor(FREQUENCIES)})
    x = torch.arange(1.0, 9).view(1, 1, 1, 8)
    turned, _ = layer(x, x, torch.tensor([6]))  # behind the class token
    assert_close(turned.flatten(), torch.tensor(expected))


@torch.no_grad()
@together("kind", KINDS)
def test_products_depend_on_the_shift_in_the_image_alone(kind: str) -> None:
    layer = rope(kind, (7, 9))
    q, k = torch.randn(2, 1, 2, 1, 8, dtype=torch.float64)

    def product(q_cell: tuple[int, int], k_cell: tuple[int, int]) -> Tensor:
        ids = [torch.tensor([1 + 9 * row + column]) for row, column in (q_cell, k_cell)]
        turned_q, turned_k = layer.at_queries_keys(q, k, *ids)
        return (turned_q * turned_k).sum(-1)

    size = 16 * (q.norm() * k.norm()).item()
    assert_close(product((0, 3), (2, 1)), product((4, 8), (6, 6)), dtype=torch.float32, scale=size, terms=1)
    assert not close(
        product((0, 3), (2, 1)), product((2, 3), (0, 1)), dtype=torch.float32, scale=size
    )  # a shift has a direction


@torch.no_grad()
@together("kind", KINDS)
def test_the_class_token_stays_and_larger_grids_count_on(kind: str) -> None:
    layer, (q, k) = rope(kind), torch.randn(2, 1, 2, 1 + 4 * 5, 8)
    turned, _ = layer(q, k)
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert layer.on_grid(GRID) is layer
    larger = layer.on_grid((8, 10))
    assert (larger.image_tokens, layer.image_tokens) == (81, 21)
    where = torch.cat((torch.zeros(1).long(), 1 + torch.arange(80).view(8, 10)[:4, :5].flatten()))
    assert torch.equal(larger(q, k, where)[0], turned)
    assert torch.equal(larger.on_grid(GRID)(q, k)[0], turned)
    with pytest.raises(PositionError):
        layer(q, k, offset=1)


@torch.no_grad()
@together("kind", KINDS)
def test_a_grid_spread_over_the_trained_extent(kind: str) -> None:
    """The middle of four cells has the position of the cell that they were: angles are linear."""
    layer = rope(kind)
    layer.extent = GRID
    coarse = layer.angles(torch.arange(21))
    fine = layer.on_grid((8, 10)).angles(torch.arange(81))
    assert not fine[..., 0, :].any()
    cells = fine[..., 1:, :].unflatten(-2, (4, 2, 5, 2)).mean(dim=(-4, -2)).flatten(-3, -2)
    assert_close(cells, coarse[..., 1:, :], scale=coarse)


def test_mixed_frequencies_start_as_axial_ones_in_two_perpendicular_directions() -> None:
    weight = MixedRotaryEmbedding(head_dim=16, heads=3, grid=GRID).frequency_weight.detach()
    assert_close(weight.norm(dim=0), (10.0 ** (-torch.arange(4) / 4)).repeat(3, 2))
    first, second = weight.unflatten(-1, (2, 4)).unbind(2)
    assert_close((first * second).sum(0), torch.zeros(3, 4), scale=1)
    directions = torch.atan2(weight[1], weight[0]) % (2 * math.pi)
    assert len({round(one.item(), 4) for one in directions[:, 0]}) == 3


def test_frequencies_are_learned_and_shared_by_the_query_heads_of_a_group() -> None:
    layer = MixedRotaryEmbedding(head_dim=4, heads=2, grid=GRID).double()
    attention = Attention(dim=16, heads=4, kv_heads=2, encoding=layer, causal=False).double()
    x = torch.randn(2, 21, 16, dtype=torch.float64)
    attention(x).square().sum().backward()
    assert layer.frequency_weight.grad is not None
    assert (layer.frequency_weight.grad != 0).all()
    q, k = torch.randn(1, 4, 21, 4), torch.randn(1, 2, 21, 4)
    turned, _ = layer(q, k)
    for head in range(4):
        alone = MixedRotaryEmbedding(head_dim=4, heads=1, grid=GRID)
        alone.load_state_dict({"frequency_weight": layer.frequency_weight[:, head // 2, None]})
        assert_close(turned[:, head, None], alone(q[:, head, None], k[:, :1])[0])
    with pytest.raises(ArgumentError, match=r"k must be \(B, H=2, L, d\)"):
        layer(q, q)
