"""Position ids from how the tokens lie: in a row, padded, or packed."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.positions.checks import check_cu_seqlens, check_mask, check_offset, require_integers


def consecutive(length: int, offset: int | Tensor = 0, *, device: torch.device | str | None = None) -> Tensor:
    """The ids of ``length`` tokens after ``offset`` earlier ones: (L,), or (B, L) for offsets (B,).

    A tensor's offset decides the device; ``device`` is for a number.
    """
    if length < 0:
        raise ArgumentError(f"length counts tokens and cannot be negative; got {length}")
    offset = check_offset(offset)
    if isinstance(offset, Tensor):
        return offset[..., None] + torch.arange(length, device=offset.device)
    return torch.arange(offset, offset + length, device=device)


def require_fit(batch: int, length: int, position_ids: Tensor | None, offset: int | Tensor) -> None:
    """Raise ArgumentError unless these positions fit an input of ``batch`` sequences of ``length`` tokens.

    Every layer asks this of its arguments: position_ids (L,), (1, L) or (B, L), or an offset, a number or (B,).
    """
    if position_ids is None:
        if isinstance(offset, Tensor) and offset.dim() and tuple(offset.shape) != (batch,):
            raise ArgumentError(
                f"offset must be a number or (B,)=({batch},) for this input; got {tuple(offset.shape)}"
            )
        return
    if isinstance(offset, Tensor) or offset:
        raise ArgumentError("give position_ids or offset, not both: add the offset to the ids")
    if not isinstance(position_ids, Tensor):
        raise ArgumentError(f"position_ids must be a tensor of integers; got {position_ids!r}")
    require_integers(position_ids, "position_ids")
    shape = tuple(position_ids.shape)
    # The batch is compared before 1, which an exported program would otherwise hold it to be or not to be.
    if len(shape) not in (1, 2) or shape[-1] != length or (len(shape) == 2 and shape[0] not in (batch, 1)):
        raise ArgumentError(
            f"position_ids must be (L,)=({length},) or (B, L)=({batch}, {length}) for this input; got {shape}"
        )


def given_or_consecutive(
    position_ids: Tensor | None, offset: int | Tensor, *, batch: int, length: int, device: torch.device
) -> Tensor:
    """The ids given, or where there are none those from ``offset`` on: (L,), (1, L) or (B, L).

    Raises:
        ArgumentError: ids or offsets that do not fit the input, or both.
    """
    require_fit(batch, length, position_ids, offset)
    return consecutive(length, offset, device=device) if position_ids is None else position_ids


def from_mask(mask: Tensor, *, padding: int = 0) -> Tensor:
    """mask (L,) or (B, L), 1 where a token is -> ids that count the tokens of each row; padding gets ``padding``.

    Padding may be on the left, on the right or between tokens. For a table with a row for padding pass
    ``padding=posembed.PADDING`` (-1). While decoding with a cache, the ids of the new tokens are
    the last columns: ``from_mask(mask)[:, -new:]``.

    Raises:
        ArgumentError: the mask holds something else than 0 and 1, or a row without a token.
    """
    present = check_mask(mask)
    return torch.where(present, present.cumsum(-1) - 1, padding)


def from_token_ids(token_ids: Tensor, pad_id: int, *, padding: int = 0) -> Tensor:
    """token_ids (L,) or (B, L) -> ids that count the tokens other than ``pad_id``, as fairseq and RoBERTa do."""
    require_integers(token_ids, "token_ids")
    return from_mask(token_ids != pad_id, padding=padding)


def from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """cu_seqlens (S + 1,), where each packed sequence starts and the last one ends -> (L,), from 0 in each.

    Raises:
        ArgumentError: they do not rise from 0 to ``length``, the number of packed tokens.
    """
    bounds = check_cu_seqlens(cu_seqlens, length)
    places = torch.arange(length, device=bounds.device)
    return places - bounds[torch.searchsorted(bounds, places, right=True) - 1]


def from_segment_ids(segment_ids: Tensor) -> Tensor:
    """segment_ids (L,) or (B, L), any integers -> ids that start at 0 wherever the segment changes."""
    require_integers(segment_ids, "segment_ids")
    places = torch.arange(segment_ids.shape[-1], device=segment_ids.device)
    changes = torch.zeros_like(segment_ids, dtype=torch.bool)
    changes[..., 1:] = segment_ids[..., 1:] != segment_ids[..., :-1]
    return places - torch.where(changes, places, 0).cummax(-1).values
