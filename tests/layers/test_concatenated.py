from __future__ import annotations

import pytest
import torch

from posembed import LearnedPositionalEmbedding
from posembed.errors import ArgumentError
from posembed.integrations.saved import encoding_for
from posembed.layers import ConcatenatedPositionalEmbedding
from tolerance import assert_close


def layer(**changed: object) -> ConcatenatedPositionalEmbedding:
    settings = {"max_len": 9, "dim": 8, "position_dim": 3, "dropout": 0.0} | changed
    return ConcatenatedPositionalEmbedding(**settings)  # type: ignore[arg-type]


def test_the_token_keeps_its_first_components_and_the_row_follows() -> None:
    positions, x = layer(), torch.randn(2, 5, 8, requires_grad=True)
    ids = torch.tensor([[0, 1, 2, 3, 4], [8, 0, 7, 1, 6]])
    y = positions(x, ids)
    assert torch.equal(y, torch.cat((x[..., :5], positions.weight[ids]), dim=-1))
    weights = torch.randn(2, 5, 8)
    of_x, of_rows = torch.autograd.grad((y * weights).sum(), (x, positions.weight))
    assert torch.equal(of_x[..., :5], weights[..., :5])
    assert not of_x[..., 5:].any()
    assert_close(of_rows, torch.zeros(9, 3).index_add(0, ids.flatten(), weights[..., 5:].flatten(0, 1)))


def test_it_is_a_sum_with_a_token_that_has_zeros_and_a_row_that_has_zeros() -> None:
    """So what a concatenation can compute, a sum can, with a table whose first components are zero."""
    positions, x = layer(), torch.randn(2, 9, 8)
    table = torch.cat((torch.zeros(9, 5), positions.weight.detach()), dim=-1)
    summed = LearnedPositionalEmbedding(max_len=9, dim=8, dropout=0.0, init=table)
    kept = x * (torch.arange(8) < 5)
    assert torch.equal(positions(x), summed(kept))


def test_the_width_of_a_row() -> None:
    assert [layer(dim=dim, position_dim=None).position_dim for dim in (2, 8, 96)] == [1, 2, 24]
    for wrong in (0, 8, 9, -1, 2.5):
        with pytest.raises(ArgumentError, match="position_dim"):
            layer(position_dim=wrong)
    with pytest.raises(ArgumentError, match="dim: expected a whole number of at least 2"):
        layer(dim=1, position_dim=None)


def test_initial_values() -> None:
    assert not layer(init="zero").weight.any()
    table = torch.randn(9, 3)
    assert torch.equal(layer(init=table).weight.detach(), table)
    positions = layer(std=0.5, max_len=500)
    assert positions.weight.std().item() == pytest.approx(0.5, rel=0.1)
    before = positions.weight.detach().clone()
    positions.reset_parameters()
    assert not torch.equal(positions.weight.detach(), before)


def test_a_model_that_adds_rows_itself_refuses_it() -> None:
    sizes = {"dim": 8, "heads": 2, "max_len": 9, "causal": True}
    with pytest.raises(ArgumentError, match="can only add rows"):
        encoding_for("learned-concat", sizes, table_width=8)
