from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from posembed import LearnedPositionalEmbedding, resize_table
from posembed.errors import PositionError
from posembed.layers import ExtendedPositionalEmbedding
from posembed.layers.extended import METHODS as FOLLOWED
from posembed.layers.extended import RANDOM, extended_rows
from posembed.positions import from_mask
from together import together
from tolerance import assert_close

METHODS = (*FOLLOWED, RANDOM)
LONGEST = 20


def layer(method: str, max_len: int = 6) -> ExtendedPositionalEmbedding:
    torch.manual_seed(0)
    longest = LONGEST if method == RANDOM else None
    return ExtendedPositionalEmbedding(max_len=max_len, dim=4, method=method, longest=longest, dropout=0.0).eval()


@settings(max_examples=40)
@given(st.sampled_from(METHODS), st.integers(0, 6))
def test_within_its_length_it_is_the_trained_table(method: str, length: int) -> None:
    ours = layer(method)
    plain = LearnedPositionalEmbedding(max_len=6, dim=4, init=ours.weight.detach()).eval()
    x = torch.randn(2, length, 4)
    assert torch.equal(ours(x), plain(x))
    assert torch.equal(ours.rows(torch.arange(length)), ours.weight[:length])


@pytest.mark.parametrize("method", METHODS)
def test_beyond_it_is_the_resized_table(method: str) -> None:
    ours = layer(method)
    longer = resize_table(ours.weight, length=LONGEST if method == RANDOM else 17, method=method)[:17]
    assert_close(ours.rows(torch.arange(17)), longer)
    assert_close(ours(torch.zeros(3, 17, 4)), longer.expand(3, -1, -1))
    assert_close(ours(torch.zeros(1, 5, 4), offset=12)[0], longer[12:])


@settings(max_examples=40)
@given(st.sampled_from(FOLLOWED), st.integers(2, 30), st.integers(1, 200))
def test_it_is_the_resized_table_at_any_size(method: str, rows: int, length: int) -> None:
    table = torch.randn(rows, 3, dtype=torch.float64)
    ids, lengths = torch.arange(length), torch.tensor(length)
    if method == "hierarchical" and length > rows**2:
        return
    ours = extended_rows(table, ids, lengths, method=method)
    expected = table[:length] if length <= rows else resize_table(table, length=length, method=method)
    assert_close(ours, expected, depth=2)


@pytest.mark.parametrize("method", METHODS)
def test_padded_packed_and_sharded_are_alone(method: str) -> None:
    ours = layer(method)
    short, long = torch.randn(1, 5, 4), torch.randn(1, 20, 4)
    alone, alone_long = ours(short), ours(long)
    mask = torch.tensor([[0] * 15 + [1] * 5, [1] * 20])
    padded = ours(torch.cat([F.pad(short, (0, 0, 15, 0)), long]), from_mask(mask))
    assert torch.equal(padded[:1, 15:], alone)
    assert torch.equal(padded[1:], alone_long)
    shared_ids = ours(
        torch.cat([F.pad(short, (0, 0, 0, 15)), long]), torch.arange(20), text_length=torch.tensor([5, 20])
    )
    assert torch.equal(shared_ids[:1, :5], alone)
    assert torch.equal(shared_ids[1:], alone_long)
    packed_ids = torch.cat([torch.arange(5), torch.arange(20)])[None]
    lengths = torch.tensor([[5] * 5 + [20] * 20])
    packed = ours(torch.cat([short, long], dim=1), packed_ids, text_length=lengths)
    assert torch.equal(packed, torch.cat([alone, alone_long], dim=1))
    shard = ours(long[:, 5:10], torch.arange(5, 10), text_length=20)
    assert torch.equal(shard, alone_long[:, 5:10])
    assert torch.equal(ours(long[:, 10:], offset=10, text_length=20), alone_long[:, 10:])


@together("method", METHODS, usual=lambda method: method in (METHODS[0], RANDOM))
def test_compiled_whole_and_exported(method: str) -> None:
    ours = layer(method)
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager", dynamic=True)
    for length in (4, 13):
        x, ids = torch.randn(2, length, 4), torch.arange(length).expand(2, -1)
        expected = ours(x, ids)
        assert torch.equal(compiled(x, ids), expected)
        assert torch.equal(compiled(x), expected)
    exported = torch.export.export(ours, (x, ids)).module()
    assert torch.equal(exported(x, ids), expected)


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


def test_random_rows_have_the_scale_of_the_trained_rows_and_are_not_trained() -> None:
    ours = ExtendedPositionalEmbedding(max_len=50, dim=40, method=RANDOM, longest=90, dropout=0.0).eval()
    with torch.no_grad():
        ours.weight.mul_(3)  # as training might
    rows = ours.rows(torch.arange(90))
    assert rows[50:].std().item() == pytest.approx(ours.weight.std().item(), rel=0.05)
    assert torch.equal(rows, resize_table(ours.weight, length=90, method=RANDOM))
    rows[50:].sum().backward()
    assert not ours.weight.grad.any()
    assert "drawn" not in ours.state_dict()


def test_random_rows_survive_memory_without_values() -> None:
    kept = ExtendedPositionalEmbedding(max_len=5, dim=4, method=RANDOM, longest=9, dropout=0.0).eval()
    rows = kept.rows(torch.arange(9))
    for assign in (False, True):
        with torch.device("meta"):
            again = ExtendedPositionalEmbedding(max_len=5, dim=4, method=RANDOM, longest=9, dropout=0.0).eval()
        again = again if assign else again.to_empty(device="cpu")
        again.load_state_dict(kept.state_dict(), assign=assign)
        assert torch.equal(again.rows(torch.arange(9)), rows)
    assert kept.bfloat16().rows(torch.arange(9)).dtype == torch.bfloat16


@pytest.mark.parametrize("longest", [7, 6])
def test_random_ends_at_its_longest(longest: int) -> None:
    ours = ExtendedPositionalEmbedding(max_len=6, dim=4, method=RANDOM, longest=longest).eval()
    assert ours(torch.zeros(1, longest, 4)).shape == (1, longest, 4)
    for read in (lambda: ours.rows(torch.tensor([longest])), lambda: ours(torch.zeros(1, longest + 1, 4))):
        with pytest.raises(PositionError, match=f"position {longest} has no row"):
            read()


def test_state_dict_is_that_of_the_plain_table() -> None:
    LearnedPositionalEmbedding(max_len=6, dim=4).load_state_dict(layer("linear").state_dict())
