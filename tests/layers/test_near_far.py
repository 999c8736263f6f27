from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed import ArgumentError, NearFarPositionalEmbedding
from posembed.lab.model import Decoder
from posembed.positions import from_mask
from tolerance import assert_close


def decoder(*, window: int = 4, ring: int | None = None, layers: int = 2) -> Decoder:
    torch.manual_seed(0)
    encoding = NearFarPositionalEmbedding(near_window=window, dim=16, heads=4, near_heads=1, ring=ring)
    encoding.weight.data.normal_()
    return Decoder(11, 16, layers=layers, heads=4, encoding=encoding).double().eval()


def test_near_heads_see_the_window_and_the_others_everything() -> None:
    layer = NearFarPositionalEmbedding(near_window=3, dim=10, heads=5)
    assert layer.window is None
    positions = torch.arange(7, 15)
    bias = layer.at_scores(positions, positions)
    near = torch.ones(8, 8).tril().triu(-2).bool() | torch.ones(8, 8).triu(1).bool()
    assert torch.equal(bias[:3] == 0, near.expand(3, -1, -1))
    assert torch.equal(bias[:3].isinf(), ~near.expand(3, -1, -1))
    assert not bias[3:].any()


def test_rows_reach_the_near_heads_alone() -> None:
    layer = NearFarPositionalEmbedding(near_window=3, dim=8, heads=4, near_heads=3, ring=5).double()
    weight = torch.randn(16, 8, dtype=torch.float64)
    ids = torch.tensor([[0, 4, 5], [9, 10, -1]])
    added = layer.before_queries_keys(lambda rows: rows @ weight.T, ids).view(2, 3, 2, 4, 2)
    rows = layer.weight[ids % 5] @ weight.T
    assert_close(added[..., :3, :], rows.view(2, 3, 2, 4, 2)[..., :3, :])
    assert not added[..., 3, :].any()


def test_far_order_is_not_seen_and_far_tokens_are() -> None:
    """In one layer what lies beyond the window is a set."""
    model = decoder(window=4, layers=1)
    ids = torch.randint(11, (1, 20))
    shuffled = torch.cat([ids[:, torch.randperm(16)], ids[:, 16:]], dim=1)
    assert_close(model(ids)[:, -1], model(shuffled)[:, -1])
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % 11
    assert (model(ids) - model(changed))[:, -1].abs().max() > 1e-9


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(-9, 30))
def test_a_whole_turn_changes_nothing(window: int, more: int, turns: int) -> None:
    model = decoder(window=window, ring=window + more)
    ids = torch.randint(11, (2, 13))
    positions = torch.arange(13)
    assert_close(model(ids, positions), model(ids, positions + turns * (window + more)))


def test_what_a_cache_asks_for_is_part_of_the_whole() -> None:
    layer = NearFarPositionalEmbedding(near_window=3, dim=8, heads=4, ring=5)
    positions = torch.arange(30)
    whole = layer.at_scores(positions, positions)
    added = layer.before_queries_keys(lambda rows: rows.repeat(1, 2), positions)
    for step in range(30):
        assert torch.equal(layer.at_scores(positions[step : step + 1], positions), whole[:, step : step + 1])
        now = layer.before_queries_keys(lambda rows: rows.repeat(1, 2), positions[step : step + 1])
        assert torch.equal(now, added[step : step + 1])


def test_padded_is_plain() -> None:
    """Ids by row, as padding makes them: what is between two real tokens is that of the sequence alone."""
    layer = NearFarPositionalEmbedding(near_window=3, dim=8, heads=4, ring=5)
    ids = from_mask(torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]))
    bias = layer.at_scores(ids, ids)
    assert bias.shape == (2, 4, 7, 7)
    alone = torch.arange(4)
    assert torch.equal(bias[0, :, 3:, 3:], layer.at_scores(alone, alone))


def test_training_draws_every_phase_and_all_rows_learn() -> None:
    model = decoder(ring=6)
    layer = model.encoding
    assert isinstance(layer, NearFarPositionalEmbedding)
    ids = layer.training_positions(100, 9, torch.Generator().manual_seed(3))
    assert torch.equal(ids - ids[:, :1], torch.arange(9).expand(100, 9))
    assert set(ids[:, 0].tolist()) == set(range(6))
    assert torch.equal(ids, layer.training_positions(100, 9, torch.Generator().manual_seed(3)))
    model(torch.randint(11, (100, 9)), ids).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum(dim=1).min() > 0


def test_hidden_is_counted_from_positions() -> None:
    layer = NearFarPositionalEmbedding(near_window=3, dim=8, heads=2)
    hidden = layer.at_scores(torch.tensor([0, 10]), torch.tensor([0, 7, 8]))
    assert torch.equal(hidden[0].isinf(), torch.tensor([[False, False, False], [True, True, False]]))


def test_flex_attention_hides_the_same() -> None:
    layer = NearFarPositionalEmbedding(near_window=3, dim=8, heads=2)
    positions = torch.arange(6)
    change = layer.score_mod(positions, positions)
    grid = torch.cartesian_prod(torch.arange(2), positions, positions)
    each = torch.stack([change(torch.zeros(()), torch.tensor(0), *index) for index in grid]).view(2, 6, 6)
    assert torch.equal(each, layer.at_scores(positions, positions))


def test_state_dict_is_the_weight() -> None:
    assert list(NearFarPositionalEmbedding(near_window=4, dim=8, heads=2).state_dict()) == ["weight"]


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"multiple of heads; got 10 and 4"):
        NearFarPositionalEmbedding(near_window=4, dim=10, heads=4)
    for near_heads in (0, 4):
        with pytest.raises(ArgumentError, match=rf"near_heads must be 1 to 3.*got {near_heads}"):
            NearFarPositionalEmbedding(near_window=4, dim=8, heads=4, near_heads=near_heads)
    with pytest.raises(ArgumentError, match=r"ring=7 is smaller than window=8"):
        NearFarPositionalEmbedding(near_window=8, dim=8, heads=4, ring=7)


def test_half_of_it_is_never_given_alone() -> None:
    layer = NearFarPositionalEmbedding(near_window=4, dim=8, heads=2)
    with pytest.raises(ArgumentError, match="cannot be called on its own"):
        layer(5)
