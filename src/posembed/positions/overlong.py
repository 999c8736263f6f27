"""Ways to handle an input that is longer than the table. The caller chooses; nothing happens silently.

Positions are never taken modulo the table's length: under full attention two tokens would share one position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.positions.checks import check_offset, require_at_least_one
from posembed.positions.from_layout import consecutive


def keep_first(tokens: Tensor, max_len: int) -> Tensor:
    """Keeps the first ``max_len`` tokens of each sequence (B, L, ...), or all tokens of a shorter sequence."""
    require_at_least_one(max_len=max_len)
    return tokens[:, :max_len]


def keep_last(tokens: Tensor, max_len: int) -> Tensor:
    """Keeps the last ``max_len`` tokens of each sequence (B, L, ...). Count their positions from 0."""
    require_at_least_one(max_len=max_len)
    return tokens[:, -max_len:]


def keep_head_and_tail(tokens: Tensor, max_len: int, *, head: int) -> Tensor:
    """Keeps up to ``max_len`` tokens of each sequence (B, L, ...): the first ``head`` and then the last tokens.

    Sun et al. 2019 (1905.05583) classify long texts best with the first 128 and the last 382 tokens.
    """
    require_at_least_one(max_len=max_len)
    if not 0 <= head <= max_len:
        raise ArgumentError(f"head must be 0 .. max_len = {max_len}; got {head}")
    length = tokens.shape[1]
    if length <= max_len:
        return tokens
    return torch.cat((tokens[:, :head], tokens[:, length - (max_len - head) :]), dim=1)


def sliding(length: int, offset: int | Tensor, max_len: int, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the ids of ``length`` tokens after ``offset`` earlier tokens, in a window of ``max_len`` tokens.

    The first ``max_len`` tokens are consecutive. After them the window slides along the stream and the newest
    token keeps the last position, as in the cache of StreamingLLM (2309.17453). Returns (L,), or (B, L) for offsets
    (B,). Cached keys and values keep the position they were computed with.
    """
    if length > max_len:
        raise ArgumentError(f"{length} tokens do not fit in a window of {max_len}; feed at most {max_len} at once")
    offset = check_offset(offset)
    last_start = max_len - length
    if isinstance(offset, Tensor):
        return consecutive(length, offset.clamp(max=last_start))
    return consecutive(length, min(offset, last_start), device=device)
