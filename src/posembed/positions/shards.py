"""The positions that one process holds when a sequence is divided among several (context parallelism).

The ids serve twice: ``x[:, ids]`` is the shard, and ``layer(shard, ids)`` reads the rows that belong to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError


def contiguous_shard(length: int, rank: int, world_size: int, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the ids of piece ``rank`` of ``world_size`` equal pieces of a sequence: (L / world_size,)."""
    piece = _piece(length, rank, world_size, pieces=world_size)
    return torch.arange(rank * piece, (rank + 1) * piece, device=device)


def zigzag_shard(length: int, rank: int, world_size: int, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the ids of an early piece and of the late piece that mirrors it: (L / world_size,).

    Of 2 W pieces, rank r holds pieces r and 2 W - 1 - r, so that ring attention under a causal mask gives every
    process the same work.
    """
    piece = _piece(length, rank, world_size, pieces=2 * world_size)
    mirrored = 2 * world_size - 1 - rank
    early = torch.arange(rank * piece, (rank + 1) * piece, device=device)
    late = torch.arange(mirrored * piece, (mirrored + 1) * piece, device=device)
    return torch.cat((early, late))


def _piece(length: int, rank: int, world_size: int, *, pieces: int) -> int:
    """Returns the length of each of the equal pieces."""
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank must be 0 .. world_size - 1 = {world_size - 1}; got {rank}")
    if length % pieces:
        raise ArgumentError(
            f"a sequence of {length} does not divide into {pieces} equal pieces for world_size={world_size}; "
            f"pad it to {length + -length % pieces}"
        )
    return length // pieces
