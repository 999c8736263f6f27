"""Which positions one process holds when a sequence is divided over several (context parallelism).

The ids serve twice: ``x[:, ids]`` is the shard, and ``layer(shard, ids)`` reads the rows that belong to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError


def contiguous_shard(
    length: int, rank: int, world_size: int, *, device: torch.device | str | None = None
) -> Tensor:
    """The ids of the rank-th of ``world_size`` equal pieces of a sequence of ``length``: (L / world_size,)."""
    piece = _piece(length, rank, world_size, pieces=world_size)
    return torch.arange(rank * piece, (rank + 1) * piece, device=device)


def zigzag_shard(length: int, rank: int, world_size: int, *, device: torch.device | str | None = None) -> Tensor:
    """As ``contiguous_shard``, but each process holds an early piece and the late one that mirrors it.

    Of 2 W pieces rank r holds the r-th and the (2 W - 1 - r)-th, so that under a causal mask ring attention gives
    every process the same work.
    """
    piece = _piece(length, rank, world_size, pieces=2 * world_size)
    mirrored = 2 * world_size - 1 - rank
    early = torch.arange(rank * piece, (rank + 1) * piece, device=device)
    late = torch.arange(mirrored * piece, (mirrored + 1) * piece, device=device)
    return torch.cat((early, late))


def _piece(length: int, rank: int, world_size: int, *, pieces: int) -> int:
    """The length of one of equal pieces."""
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank must be 0 .. world_size - 1 = {world_size - 1}; got {rank}")
    if length % pieces:
        raise ArgumentError(
            f"a sequence of {length} does not divide into {pieces} equal pieces for world_size={world_size}; "
            f"pad it to {length + -length % pieces}"
        )
    return length // pieces
