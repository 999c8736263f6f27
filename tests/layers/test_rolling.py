from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed import RollingPositionalEmbedding
from posembed.lab.model import Decoder
from posembed.layers.rolling import ring_sinusoids
from tolerance import assert_close


def rolling(window: int, dim: int, ring: int) -> RollingPositionalEmbedding:
    encoding = RollingPositionalEmbedding(window=window, dim=dim, ring=ring)
    torch.nn.init.normal_(encoding.weight)
    return encoding


def decoder(*, window: int = 4, ring: int = 4, layers: int = 2) -> Decoder:
    torch.manual_seed(0)
    encoding = rolling(window, 16, ring)
    return Decoder(11, 16, layers=layers, heads=2, encoding=encoding).double().eval()


def test_rows_come_round() -> None:
    layer = RollingPositionalEmbedding(window=4, dim=6, ring=5)
    ids = torch.tensor([0, 4, 5, 9, 10, 1_000_000_004, -1])
    assert torch.equal(layer.rows(ids), layer.weight[[0, 4, 0, 4, 0, 4, 4]])


def test_any_length_meets_what_training_met() -> None:
    """Past n (w - 1) + 1 tokens an output depends on the last of them alone, at a phase seen in training."""
    model = decoder(window=4, ring=6, layers=2)
    reach = 2 * (4 - 1) + 1
    ids = torch.randint(11, (1, 50))
    long = model(ids)
    for end in (reach, 20, 50):
        phase = (end - reach) % 6  # as training draws it
        short = model(ids[:, end - reach : end], torch.arange(reach) + phase)
        assert_close(short[:, -1], long[:, end - 1])


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(-9, 30))
def test_a_whole_turn_changes_nothing(window: int, more: int, turns: int) -> None:
    model = decoder(window=window, ring=window + more)
    ids = torch.randint(11, (2, 13))
    positions = torch.arange(13)
    assert torch.equal(model(ids, positions), model(ids, positions + turns * (window + more)))


def test_queries_and_keys_read_h_plus_rows_and_values_do_not() -> None:
    """before_queries_keys gives W(h + P) - W h for W_q and W_k."""
    layer = rolling(3, 8, 4).double()
    weight = torch.randn(16, 8, dtype=torch.float64)
    h = torch.randn(2, 9, 8, dtype=torch.float64)
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8, 9, 10, 11]])
    added = layer.before_queries_keys(lambda rows: rows @ weight.T, ids)
    assert added is not None
    expected = (h + layer.rows(ids)) @ weight.T - h @ weight.T
    assert_close(added, expected)
    assert layer.at_input(h, ids) is h


def test_training_draws_every_phase_and_the_generator_decides() -> None:
    layer = RollingPositionalEmbedding(window=4, dim=6, ring=5)
    ids = layer.training_positions(200, 7, torch.Generator().manual_seed(3))
    assert ids.shape == (200, 7)
    assert set(ids[:, 0].tolist()) == set(range(5))
    assert torch.equal(ids - ids[:, :1], torch.arange(7).expand(200, 7))
    assert torch.equal(ids, layer.training_positions(200, 7, torch.Generator().manual_seed(3)))


def test_periods_of_the_sinusoids_divide_the_ring() -> None:
    for ring, dim in [(16, 96), (12, 7), (5, 4), (1, 3)]:
        rows = ring_sinusoids(ring, dim).double()
        assert rows.shape == (ring, dim)
        products = rows @ rows.T  # depends on the distance round the ring alone, where pairs are whole
        if dim % 2 == 0:
            for shift in range(ring):
                assert_close(products, products.roll((shift, shift), (0, 1)), dtype=torch.float32)
    assert ring_sinusoids(16, 96, std=0.02).std().item() == pytest.approx(0.02, rel=0.02)
    assert math.isfinite(ring_sinusoids(2, 2).sum())


def test_rows_start_at_the_scale_of_what_they_are_added_to() -> None:
    assert RollingPositionalEmbedding(window=64, dim=96).weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert RollingPositionalEmbedding(window=64, dim=96, std=0.3).weight.std().item() == pytest.approx(0.3, rel=0.05)
