from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed import (
    ArgumentError,
    ExtendedPositionalEmbedding,
    LearnedPositionalEmbedding,
    PositionError,
    resize_table,
)
from posembed.layers.extended import METHODS, extended_rows
from posembed.positions import from_mask

STABLE = ("tile", "hierarchical")


def layer(method: str, max_len: int = 6) -> ExtendedPositionalEmbedding:
    torch.manual_seed(0)
    return ExtendedPositionalEmbedding(max_len, 4, method=method, dropout=0.0).eval()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.sampled_from(METHODS), st.integers(0, 6))
def test_within_its_length_it_is_the_trained_table(method: str, length: int) -> None:
    ours = layer(method)
    plain = LearnedPositionalEmbedding(6, 4, init=ours.weight.detach()).eval()
    x = torch.randn(2, length, 4)
    assert torch.equal(ours(x), plain(x))
    assert torch.equal(ours.rows(torch.arange(length)), ours.weight[:length])
    assert extended_rows(ours.weight, length, method=method) is ours.weight


@pytest.mark.parametrize("method", METHODS)
def test_beyond_it_is_the_resized_table(method: str) -> None:
    ours = layer(method)
    longer = resize_table(ours.weight, length=17, method=method)
    assert torch.equal(ours.rows(torch.arange(17)), longer)
    assert torch.equal(ours(torch.zeros(3, 17, 4)), longer.expand(3, -1, -1))
    assert torch.equal(ours(torch.zeros(1, 5, 4), offset=12)[0], longer[12:])


@pytest.mark.parametrize("method", STABLE)
def test_cached_and_padded_are_plain(method: str) -> None:
    ours = layer(method)
    x = torch.randn(1, 20, 4)
    whole = ours(x)
    one_by_one = [ours(x[:, i : i + 1], offset=i) for i in range(20)]
    assert torch.equal(torch.cat(one_by_one, dim=1), whole)
    mask = torch.tensor([[0] * 11 + [1] * 9, [1] * 20])
    padded = ours(torch.cat([x.roll(11, 1), x]), from_mask(mask))
    assert torch.equal(padded[:1, 11:], ours(x[:, :9]))
    assert torch.equal(padded[1:], whole)


def test_what_stretches_moves_its_rows_with_the_length() -> None:
    ours = layer("linear")
    assert not torch.equal(ours.rows(torch.arange(12))[:6], ours.rows(torch.arange(18))[:6])


def test_hierarchical_ends_at_its_square() -> None:
    ours = layer("hierarchical", 3)
    assert ours.rows(torch.arange(9)).shape == (9, 4)
    for read in (lambda: ours.rows(torch.tensor([9])), lambda: ours(torch.zeros(1, 10, 4))):
        with pytest.raises(PositionError, match=r"position 9 has no row: .* positions 0 to 8"):
            read()


@pytest.mark.parametrize("method", METHODS)
def test_training_reads_no_row_that_is_not_trained(method: str) -> None:
    ours = layer(method).train()
    for read in (lambda: ours.rows(torch.tensor([0, 6])), lambda: ours(torch.zeros(1, 7, 4))):
        with pytest.raises(PositionError, match="position 6 has no row"):
            read()


def test_negative_positions_are_refused_at_any_length() -> None:
    with pytest.raises(PositionError, match="position -1 has no row"):
        layer("tile").rows(torch.tensor([-1, 8]))


def test_state_dict_is_that_of_the_plain_table() -> None:
    LearnedPositionalEmbedding(6, 4).load_state_dict(layer("linear").state_dict())


@pytest.mark.parametrize("method", ["truncate", "stretch"])
def test_a_method_that_makes_nothing_longer(method: str) -> None:
    with pytest.raises(ArgumentError, match=rf"called '{method}'; choose one of tile, hier"):
        ExtendedPositionalEmbedding(6, 4, method=method)
