"""The shards of a sequence: together they are the sequence, and under a causal mask zig-zag shares the work."""

from __future__ import annotations

import pytest
import torch

from posembed.errors import ArgumentError
from posembed.positions import contiguous_shard, zigzag_shard
from together import together


@together("shard", [contiguous_shard, zigzag_shard])
@together("world_size", [1, 2, 3, 4])
def test_shards_are_the_sequence(shard, world_size: int) -> None:
    pieces = [shard(24, rank, world_size) for rank in range(world_size)]
    assert torch.cat(pieces).sort().values.tolist() == list(range(24))
    assert {piece.shape for piece in pieces} == {(24 // world_size,)}


def test_exact_values() -> None:
    assert [contiguous_shard(8, rank, 2).tolist() for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [zigzag_shard(8, rank, 2).tolist() for rank in (0, 1)] == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_zigzag_gives_all_the_same_causal_work(world_size: int) -> None:
    # A query at position p attends to p + 1 keys.
    work = {int((zigzag_shard(24, rank, world_size) + 1).sum()) for rank in range(world_size)}
    assert work == {24 * 25 // 2 // world_size}


bad = [
    (lambda: contiguous_shard(8, 2, 2), "rank must be 0 .. world_size - 1 = 1; got 2"),
    (lambda: zigzag_shard(8, -1, 2), "got -1"),
    (lambda: contiguous_shard(9, 0, 2), "9 does not divide into 2 equal pieces for world_size=2; pad it to 10"),
    (lambda: zigzag_shard(10, 0, 2), "10 does not divide into 4 equal pieces for world_size=2; pad it to 12"),
]


@pytest.mark.parametrize(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
