"""Ways to handle an input that is longer than the table, besides a slice. The caller chooses; nothing happens silently.

Positions are never taken modulo the table's length: under full attention two tokens would share one position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.arguments import Shaped, checks_arguments
from posembed.errors import ArgumentError
from posembed.positions.checks import check_offset
from posembed.positions.from_layout import consecutive
from posembed.settings import Amount, Count


@checks_arguments
def keep_head_and_tail(tokens: Shaped[Tensor, "B L ..."], max_len: Count, *, head: Amount) -> Tensor:
    """Keeps up to ``max_len`` tokens of each sequence (B, L, ...): the first ``head`` and then the last tokens.

    Sun et al. 2019 (arXiv:1905.05583) classify long texts best with the first 128 and the last 382 tokens.

    Raises:
        ArgumentError: a max_len below 1, or a head above max_len.

    Examples:
        >>> import torch
        >>> from posembed.positions import keep_head_and_tail
        >>> keep_head_and_tail(torch.tensor([[1, 2, 3, 4, 5]]), max_len=3, head=1).tolist()
        [[1, 4, 5]]
    """
    if head > max_len:
        raise ArgumentError(f"head must be 0 .. max_len = {max_len}; got {head}")
    length = tokens.shape[1]
    if length <= max_len:
        return tokens
    return torch.cat((tokens[:, :head], tokens[:, length - (max_len - head) :]), dim=1)


@checks_arguments
def sliding(
    length: Amount, offset: Amount | Tensor, max_len: Count, *, device: torch.device | str | None = None
) -> Tensor:
    """Returns the ids of ``length`` tokens after ``offset`` earlier tokens, in a window of ``max_len`` tokens.

    The first ``max_len`` tokens have consecutive ids. After them, the newest token always has the last id,
    ``max_len - 1``, as in StreamingLLM (arXiv:2309.17453). Cached tokens keep their ids here; StreamingLLM renumbers
    them. Returns (L,), or (B, L) for offsets (B,).

    Raises:
        ArgumentError: more new tokens than the window holds.

    Examples:
        >>> from posembed.positions import sliding
        >>> sliding(1, offset=2, max_len=4).tolist(), sliding(1, offset=1000, max_len=4).tolist()
        ([2], [3])
    """
    if length > max_len:
        raise ArgumentError(f"{length} tokens do not fit in a window of {max_len}; feed at most {max_len} at once")
    offset = check_offset(offset)
    last_start = max_len - length
    if isinstance(offset, Tensor):
        return consecutive(length, offset.clamp(max=last_start))
    return consecutive(length, min(offset, last_start), device=device)
