"""Position ids from the layout of the tokens: consecutive, padded, packed, or divided among processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posembed.arguments import Integer, Shaped, checks_arguments, explains_errors
from posembed.errors import ArgumentError
from posembed.positions.checks import (
    as_int64,
    check_cu_seqlens,
    check_mask,
    check_offset,
    require_floats,
    require_integers,
    require_whole,
)
from posembed.settings import Amount, Count


@explains_errors
def consecutive(
    length: int, offset: int | Tensor = 0, *, device: torch.device | str | None = None
) -> Integer[Tensor, "... L"]:
    """Returns the ids of ``length`` tokens after ``offset`` earlier tokens: (L,), or (B, L) for offsets (B,).

    If ``offset`` is a tensor, the ids are on its device, and ``device`` is ignored.

    Raises:
        ArgumentError: a length or an offset that is negative or not a whole number.

    Examples:
        >>> from posembed.positions import consecutive
        >>> consecutive(4, offset=10).tolist()
        [10, 11, 12, 13]
    """
    require_whole(length, "length")
    if length < 0:
        raise ArgumentError(f"length counts tokens and cannot be negative; got {length}")
    offset = check_offset(offset)
    if isinstance(offset, Tensor):
        return offset[..., None] + torch.arange(length, device=offset.device)
    return torch.arange(offset, offset + length, device=device)


def require_fit(
    batch: int, length: int, position_ids: Tensor | None, offset: int | Tensor, name: str = "position_ids"
) -> None:
    """Raises ArgumentError unless these positions fit an input of ``batch`` sequences of ``length`` tokens.

    Every layer accepts either position_ids, (L,), (1, L) or (B, L), or an offset, which is a number or (B,).
    """
    if position_ids is None:
        if isinstance(offset, Tensor) and offset.dim() and tuple(offset.shape) != (batch,):
            raise ArgumentError(f"offset must be a number or (B,)=({batch},) for this input; got {tuple(offset.shape)}")
        return
    if isinstance(offset, Tensor) or offset:
        raise ArgumentError("give position_ids or offset, not both: add the offset to the ids")
    require_integers(position_ids, name)
    shape = tuple(position_ids.shape)
    # Compare with batch before 1: otherwise an exported program would specialize on whether the batch is 1.
    if len(shape) not in (1, 2) or shape[-1] != length or (len(shape) == 2 and shape[0] not in (batch, 1)):
        raise ArgumentError(
            f"{name} must be (L,)=({length},) or (B, L)=({batch}, {length}) for this input; got {shape}"
        )


def given_or_consecutive(
    position_ids: Tensor | None, offset: int | Tensor, *, batch: int, length: int, device: torch.device
) -> Tensor:
    """Checks the arguments. Returns the given ids, or consecutive ids from ``offset``: (L,), (1, L) or (B, L)."""
    require_fit(batch, length, position_ids, offset)
    return consecutive(length, offset, device=device) if position_ids is None else position_ids


def require_heads_fit(x: Tensor, position_ids: Tensor, name: str = "position_ids") -> None:
    """Raises ArgumentError unless positions (L,) or (B, L), called ``name``, fit queries or keys (B, H, L, d)."""
    require_floats(x, "queries and keys")
    if x.dim() < 3 or (x.dim() == 3 and position_ids.dim() > 1):
        raise ArgumentError(f"queries and keys must be (B, H, L, d) for these positions; got {tuple(x.shape)}")
    require_fit(x.shape[0] if x.dim() == 4 else 1, x.shape[-2], position_ids, 0, name)


def text_lengths(position_ids: Tensor, text_length: int | Tensor | None = None) -> Tensor:
    """Returns the number of tokens in each token's text, int64, broadcasting with position_ids: (), (B, 1) or (B, L).

    ``text_length`` is a number, or a tensor (), (B,) or (B, L). None means the largest position plus one, per sequence
    if sequences have their own ids.
    """
    if text_length is None:
        if position_ids.numel() == 0:
            return torch.ones((), dtype=torch.int64, device=position_ids.device)
        position_ids = as_int64(position_ids, "position_ids")
        largest = position_ids.amax(-1, keepdim=True) if position_ids.dim() > 1 else position_ids.amax()
        return largest + 1
    require_text_length(text_length, position_ids.shape[-1] if position_ids.dim() else 1)
    if not isinstance(text_length, Tensor):
        return torch.full((), text_length, dtype=torch.int64, device=position_ids.device)
    lengths = text_length.to(position_ids.device, torch.int64)
    return lengths.unsqueeze(-1) if lengths.dim() == 1 else lengths


def require_text_length(text_length: int | Tensor | None, length: int, *, batch: int | None = None) -> None:
    """Raises ArgumentError unless a text length fits an input of ``batch`` sequences of ``length`` tokens."""
    if text_length is None:
        return
    if not isinstance(text_length, Tensor):
        require_whole(text_length, "text_length")
        if text_length < 1:
            raise ArgumentError(f"text_length counts the tokens of a text, from 1; got {text_length}")
        return
    require_integers(text_length, "text_length")
    shape = tuple(text_length.shape)
    if batch is not None and shape and shape[0] not in (batch, 1):
        raise ArgumentError(f"text_length must be a number, (B,)=({batch},) or (B, L) for this input; got {shape}")
    if len(shape) > 2 or (len(shape) == 2 and shape[1] not in (1, length)):
        raise ArgumentError(f"text_length must be a number, (B,), or (B, L) with L={length}; got {shape}")


@checks_arguments
def from_mask(mask: Shaped[Tensor, "... L"], *, padding: int = 0) -> Integer[Tensor, "... L"]:
    """Numbers the tokens of each row from 0: mask (L,) or (B, L), 1 for a token -> ids of the same shape.

    Padding gets the id ``padding`` and may be on the left, on the right or between tokens. For a table with a row
    for padding pass ``padding=posembed.tables.PADDING`` (-1). When decoding with a cache, the ids of the new tokens are
    the last columns: ``from_mask(mask)[:, -new:]``.

    Raises:
        ArgumentError: a mask with values other than 0 and 1, or with a row of only padding.

    Examples:
        >>> import torch
        >>> from posembed.positions import from_mask
        >>> from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])).tolist()  # padding on the left
        [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    present = check_mask(mask)
    return torch.where(present, present.cumsum(-1) - 1, padding)


@checks_arguments
def from_token_ids(token_ids: Integer[Tensor, "... L"], pad_id: int, *, padding: int = 0) -> Integer[Tensor, "... L"]:
    """Numbers tokens (L,) or (B, L) from 0, as fairseq and RoBERTa do. Skips ``pad_id``, which gets the id ``padding``.

    Raises:
        ArgumentError: a sequence of only padding, or a pad_id that is not a whole number.

    Examples:
        >>> import torch
        >>> from posembed.positions import from_token_ids
        >>> from_token_ids(torch.tensor([[5, 6, 7, 1, 1]]), pad_id=1).tolist()
        [[0, 1, 2, 0, 0]]
    """
    return from_mask(as_int64(token_ids, "token_ids") != pad_id, padding=padding)


@checks_arguments
def from_cu_seqlens(cu_seqlens: Integer[Tensor, "... S"], length: Amount) -> Tensor:
    """Numbers the tokens of each packed sequence from 0. Returns (length,), where ``length`` counts all packed tokens.

    cu_seqlens (S + 1,) holds the start of each sequence and the end of the last sequence.

    Raises:
        ArgumentError: cu_seqlens does not rise from 0 to ``length``, the number of packed tokens.

    Examples:
        >>> import torch
        >>> from posembed.positions import from_cu_seqlens
        >>> from_cu_seqlens(torch.tensor([0, 4, 7]), length=7).tolist()  # 4 tokens, then 3
        [0, 1, 2, 3, 0, 1, 2]
    """
    bounds = check_cu_seqlens(cu_seqlens, length)
    places = torch.arange(length, device=bounds.device)
    return places - bounds[torch.searchsorted(bounds, places, right=True) - 1]


@checks_arguments
def from_segment_ids(segment_ids: Integer[Tensor, "... L"]) -> Integer[Tensor, "... L"]:
    """Numbers tokens from 0 again wherever the segment changes: segment_ids (L,) or (B, L), any integer dtype.

    Raises:
        ArgumentError: ids that are not integers.

    Examples:
        >>> import torch
        >>> from posembed.positions import from_segment_ids
        >>> from_segment_ids(torch.tensor([1, 1, 1, 2, 2])).tolist()
        [0, 1, 2, 0, 1]
    """
    places = torch.arange(segment_ids.shape[-1], device=segment_ids.device)
    return places - torch.where(changes_of_segment(segment_ids), places, 0).cummax(-1).values


@checks_arguments
def from_separators(
    token_ids: Integer[Tensor, "... L"],
    separators: Sequence[int],
    *,
    max_len: Count,
    mask: Shaped[Tensor, "... L"] | None = None,
) -> Integer[Tensor, "... L"]:
    """Computes BiPE's ids from token_ids (L,) or (B, L): max_len * segment + the token's index in its segment.

    A separator, such as the token of a full stop, is the last token of its segment. Indices above max_len - 1 become
    max_len - 1 (He et al. 2024, arXiv:2401.16421). An id depends only on earlier tokens: when decoding with a cache,
    compute the ids of the whole text and pass the last columns.

    Args:
        mask: as in ``from_mask``, with 1 for a token. Padding is not counted, and gets the id 0.

    Raises:
        ArgumentError: ids that are not integers, or a mask of another shape or with values that ``from_mask`` refuses.

    Examples:
        >>> import torch
        >>> from posembed.positions import from_separators
        >>> from_separators(torch.tensor([5, 6, 2, 7, 8, 2, 9]), [2], max_len=100).tolist()
        [0, 1, 2, 100, 101, 102, 200]
    """
    token_ids = as_int64(token_ids, "token_ids")
    present = torch.ones_like(token_ids, dtype=torch.bool) if mask is None else check_mask(mask)
    if present.shape != token_ids.shape:
        raise ArgumentError(
            f"mask must have the shape of token_ids, {tuple(token_ids.shape)}; got {tuple(present.shape)}"
        )
    ends = torch.isin(token_ids, torch.tensor(separators, dtype=torch.int64, device=token_ids.device)) & present
    segments, before = ends.cumsum(-1) - ends.long(), present.cumsum(-1) - present.long()
    first = torch.where(changes_of_segment(segments), before, 0).cummax(-1).values
    return torch.where(present, max_len * segments + (before - first).clamp(max=max_len - 1), 0)


def changes_of_segment(segment_ids: Tensor) -> Tensor:
    """Returns booleans: whether a token's segment differs from that of the token before it. False for the first token.

    No tensor is shorter than the text, so an exported program takes texts of any length.
    """
    ids = as_int64(segment_ids, "segment_ids")
    return (ids != ids.roll(1, dims=-1)) & (torch.arange(ids.shape[-1], device=ids.device) > 0)


@checks_arguments
def contiguous_shard(
    length: Amount, rank: Amount, world_size: Count, *, device: torch.device | str | None = None
) -> Tensor:
    """Returns the ids of piece ``rank`` of ``world_size`` equal pieces of a sequence: (length / world_size,).

    The ids serve twice: ``x[:, ids]`` is the shard, and ``layer(shard, ids)`` reads the rows that belong to it.

    Raises:
        ArgumentError: a rank that does not exist, or a length that is not a multiple of world_size.

    Examples:
        >>> from posembed.positions import contiguous_shard
        >>> contiguous_shard(8, rank=1, world_size=2).tolist()
        [4, 5, 6, 7]
    """
    return _shard(length, rank, world_size, device, (rank,))


@checks_arguments
def zigzag_shard(
    length: Amount, rank: Amount, world_size: Count, *, device: torch.device | str | None = None
) -> Tensor:
    """Returns the ids (length / world_size,) of process ``rank``: an early piece and its mirror image, a late piece.

    The sequence has 2 W equal pieces for W = world_size processes. Rank r holds pieces r and 2 W - 1 - r, so that ring
    attention under a causal mask gives every process the same work.

    Raises:
        ArgumentError: a rank that does not exist, or a length that is not a multiple of 2 W.

    Examples:
        >>> from posembed.positions import zigzag_shard
        >>> zigzag_shard(8, rank=0, world_size=2).tolist()
        [0, 1, 6, 7]
    """
    return _shard(length, rank, world_size, device, (rank, 2 * world_size - 1 - rank))


def _shard(
    length: int, rank: int, world_size: int, device: torch.device | str | None, numbers: tuple[int, ...]
) -> Tensor:
    """Splits the sequence into len(numbers) * world_size equal pieces and returns the ids of the pieces ``numbers``."""
    pieces = len(numbers) * world_size
    if rank >= world_size:
        raise ArgumentError(f"rank must be 0 .. world_size - 1 = {world_size - 1}; got {rank}")
    if length % pieces:
        raise ArgumentError(
            f"a sequence of {length} does not divide into {pieces} equal pieces for world_size={world_size}; "
            f"pad it to {length + -length % pieces}"
        )
    return torch.arange(length, device=device).view(pieces, length // pieces)[list(numbers)].flatten()
