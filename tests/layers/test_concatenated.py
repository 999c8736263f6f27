from __future__ import annotations

import pytest
import torch

from posembed.errors import ArgumentError
from posembed.integrations.saved import encoding_for
from posembed.layers import ConcatenatedPositionalEmbedding


def layer(**changed: object) -> ConcatenatedPositionalEmbedding:
    settings = {"max_len": 9, "dim": 8, "position_dim": 3, "dropout": 0.0} | changed
    return ConcatenatedPositionalEmbedding(**settings)  # type: ignore[arg-type]


def test_the_width_of_a_row() -> None:
    assert [layer(dim=dim, position_dim=None).position_dim for dim in (2, 8, 96)] == [1, 2, 24]


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
