"""Position ids from how the tokens lie: in a row, padded, or packed."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.positions.checks import require_integers


def consecutive(length: int, offset: int | Tensor = 0, *, device: torch.device | str | None = None) -> Tensor:
    """The ids of ``length`` tokens that follow ``offset`` earlier ones: (L,), or (B, L) for offsets (B,)."""
    if isinstance(offset, Tensor):
        require_integers(offset, "offset")
        return offset.to(torch.int64)[..., None] + torch.arange(length, device=offset.device)
    return torch.arange(offset, offset + length, device=device)


def from_mask(mask: Tensor, *, padding: int = 0) -> Tensor:
    """mask (L,) or (B, L), 1 where a token is -> ids that count the tokens; padded places get ``padding``."""
    present = mask.bool()
    return torch.where(present, present.cumsum(-1) - 1, padding)


def from_token_ids(token_ids: Tensor, pad_id: int, *, padding: int = 0) -> Tensor:
    """token_ids (L,) or (B, L) -> ids that count the tokens other than ``pad_id``, as fairseq does."""
    require_integers(token_ids, "token_ids")
    return from_mask(token_ids != pad_id, padding=padding)


def from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """cu_seqlens (S + 1,), where each packed sequence starts and the last ends -> (L,), from 0 in each."""
    ends = cu_seqlens.to(torch.int64)
    places = torch.arange(length, device=ends.device)
    return places - ends[torch.searchsorted(ends, places, right=True) - 1]


def from_segment_ids(segment_ids: Tensor) -> Tensor:
    """segment_ids (L,) or (B, L) -> ids that start at 0 wherever the segment changes."""
    places = torch.arange(segment_ids.shape[-1], device=segment_ids.device)
    changes = torch.zeros_like(segment_ids, dtype=torch.bool)
    changes[..., 1:] = segment_ids[..., 1:] != segment_ids[..., :-1]
    return places - torch.where(changes, places, 0).cummax(-1).values
