"""Reads how the tokens of a call are laid out: packed texts, padding, and tokens in a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.nn.cache import KeyValueCache
from posembed.positions.checks import check_cu_seqlens, check_mask, check_mask_unchanged, require_integers
from posembed.positions.from_layout import changes_of_segment


def packed_texts(segment_ids: Tensor | None, cu_seqlens: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Returns the index of each token's text in its row: int64 (B, L) or (1, L), or None if no texts are packed."""
    if segment_ids is None and cu_seqlens is None:
        return None
    if segment_ids is not None and cu_seqlens is not None:
        raise ArgumentError("segment_ids and cu_seqlens both say where the packed sequences are: give one of them")
    if cu_seqlens is not None:
        if batch != 1:
            raise ArgumentError(
                f"cu_seqlens are for sequences packed into one row, x (N, D) or (1, N, D); got a batch of {batch}. "
                f"Pass segment_ids (B, L)=({batch}, {length}) instead"
            )
        bounds = check_cu_seqlens(cu_seqlens, length)
        return torch.searchsorted(bounds, torch.arange(length, device=bounds.device), right=True).unsqueeze(0) - 1
    assert segment_ids is not None
    require_integers(segment_ids, "segment_ids")
    if segment_ids.dim() not in (1, 2) or segment_ids.size(-1) != length or (
        segment_ids.dim() == 2 and segment_ids.size(0) not in (batch, 1)
    ):  # fmt: skip
        raise ArgumentError(
            f"segment_ids must be (L,)=({length},) or (B, L)=({batch}, {length}), one number for each token of x; got "
            f"{tuple(segment_ids.shape)}"
        )
    segment_ids = segment_ids if segment_ids.dim() == 2 else segment_ids.unsqueeze(0)
    return changes_of_segment(segment_ids).cumsum(-1)


def own_lengths(position_ids: Tensor, texts: Tensor) -> Tensor:
    """Returns the largest position in each token's text plus one: (B, L) or (1, L)."""
    position_ids, texts = torch.broadcast_tensors(position_ids, texts)
    largest = torch.zeros_like(position_ids).scatter_reduce(1, texts, position_ids, "amax")
    return 1 + largest.gather(1, texts)


def present_tokens(mask: Tensor | None, batch: int, length: int, cache: KeyValueCache | None) -> Tensor | None:
    """Returns a boolean mask (B, earlier + L), False for padding, or None if there is no padding."""
    earlier, before = (0, None) if cache is None else (cache.length, cache.present)
    before = None if before is None else before[:, :earlier]
    if mask is None:
        return None if before is None else torch.cat((before, before.new_ones(batch, length)), dim=1)
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.size(0) != batch:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else repr(mask)
        raise ArgumentError(
            f"mask must be a tensor (B, L)=({batch}, {length}), 1 for a token, 0 for padding; got {given}"
        )
    if mask.size(1) not in (length, earlier + length):
        with_cache = f", or (B, {earlier + length}) with the tokens of the cache" if earlier else ""
        raise ArgumentError(
            f"mask must be (B, L)=({batch}, {length}){with_cache}, one number for each token of x; got "
            f"{tuple(mask.shape)}. Pass the mask of these tokens"
        )
    given_earlier = earlier > 0 and mask.size(1) > length
    if earlier and not given_earlier:
        before = mask.new_ones(batch, earlier) if before is None else before.to(mask.dtype)
        mask = torch.cat((before, mask), dim=1)
    if cache is None:
        return check_mask(mask)
    present = check_mask(torch.cat((mask, mask.new_ones(batch, 1)), dim=1))[:, :-1]  # a row's tokens may come later
    if given_earlier:
        changed = check_mask_unchanged(present[:, :earlier] != (True if before is None else before))
        present = torch.cat((present[:, :earlier] ^ changed, present[:, earlier:]), dim=1)
    return present


def joined(earlier: Tensor, new: Tensor) -> Tensor:
    """Joins positions (L,), (1, L) or (B, L) along the text."""
    if earlier.dim() != new.dim() or earlier.shape[:-1] != new.shape[:-1]:
        batch = max(ids.size(0) if ids.dim() == 2 else 1 for ids in (earlier, new))
        earlier, new = earlier.expand(batch, -1), new.expand(batch, -1)
    return torch.cat((earlier, new), dim=-1)
