"""Checks of positions, offsets, masks and packed sequences, made before any row is read.

A check reads values, so it is a custom operator. Under torch.compile it stays in the graph; under torch.func it sees
all mapped values. It raises the same error as in eager mode, with the position in the message. On CUDA it waits for the
values and raises on the host; an out-of-bounds lookup would destroy the CUDA context. An exported program cannot call
Python and keeps an assertion instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from posembed.arguments import explains_errors
from posembed.errors import ArgumentError, PositionError
from posembed.torch_internals import transforms_are_active


def require_integers(values: Tensor, name: str) -> None:
    """Raises ArgumentError unless the tensor has an integer dtype. A bool tensor is a mask, not integers."""
    if not isinstance(values, Tensor):
        raise ArgumentError(f"{name} must be a tensor of integers; got {values!r}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ArgumentError(
            f"{name} must be integers; got {values.dtype}. Make them with .long() from the start: bfloat16 "
            "cannot tell 256 from 257. posembed.positions.from_mask turns a mask into ids"
        )


def require_floats(x: Tensor, name: str) -> None:
    """Raises ArgumentError unless the tensor has a floating-point dtype. Integers would truncate the rows."""
    if not x.is_floating_point():
        remedy = "" if x.is_complex() else ", which .float() converts"
        raise ArgumentError(f"{name} must be floats; got {x.dtype}{remedy}")


def as_int64(values: Tensor, name: str) -> Tensor:
    """Converts integers of any dtype to int64, in which sums and differences of positions do not overflow."""
    require_integers(values, name)
    return values if values.dtype == torch.int64 else values.to(torch.int64)


def require_whole(number: object, name: str) -> None:
    """Raises ArgumentError unless the number is whole."""
    of_tensor = isinstance(number, torch.Tensor) and number.dim() == 0 and not number.is_floating_point()
    if isinstance(number, bool) or not (isinstance(number, (int, Integral, torch.SymInt)) or of_tensor):
        raise ArgumentError(f"{name} must be a whole number; got {number!r}")


def no_row(position: int, max_len: int, *, length: int = 1) -> PositionError:
    """Returns the error for a position without a row: the position of the last of ``length`` consecutive tokens."""
    first = position - length + 1
    reached = f"{length} tokens from offset {first} reach it, and " if length > 1 and first >= 0 else ""
    held = (
        f"position {position} has no row: {reached}this table holds positions 0 to {max_len - 1} (max_len={max_len})."
    )
    if position < 0:
        return PositionError(f"{held} Count from 0; posembed.positions.from_mask does it for padded inputs.")
    return PositionError(
        f"{held} Shorten the input, lengthen the table (posembed.resize_table, posembed resize), or use an "
        "encoding without an end (RollingPositionalEmbedding, Alibi)."
    )


def _which_has_no_row(ids: Tensor, max_len: int, lowest: int) -> Exception:
    if ids.max() < max_len:
        return no_row(int(ids.min()), max_len)
    sequences = ids.reshape(-1, ids.shape[-1] if ids.dim() else 1)
    worst = sequences[sequences.amax(dim=-1).argmax()]
    consecutive = bool((worst.diff() == 1).all())
    return no_row(int(worst.max()), max_len, length=len(worst) if consecutive else 1)


def check_of(what: str, holds: Callable[..., Tensor], explain: Callable[..., Exception]) -> Callable[..., Tensor]:
    """Makes a function (values, *limits) that returns the values if they are valid, or else raises ``explain(...)``."""

    def check(values: Tensor, limits: Sequence[int]) -> None:
        if not holds(values, *limits):
            raise explain(values, *limits)

    # The op returns the checked values, so that every lookup with them runs after the check.
    @torch.library.custom_op(f"posembed::{what.replace(' ', '_')}", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
    def op(values: Tensor, limits: Sequence[int]) -> Tensor:
        check(values, limits)
        return values.clone()

    @op.register_fake
    def _(values: Tensor, limits: Sequence[int]) -> Tensor:
        return torch.empty_like(values)

    @op.register_vmap
    def _(info: Any, in_dims: tuple[int | None, None], values: Tensor, limits: Sequence[int]) -> tuple[Tensor, int]:
        assert in_dims[0] is not None  # only values can be mapped over
        return op(values.movedim(in_dims[0], 0), limits), 0

    def run(values: Tensor, *limits: int) -> Tensor:
        if torch.compiler.is_exporting():
            torch._assert_async(holds(values, *limits), f"posembed requires that {what}")
            return values
        opaque = torch.compiler.is_compiling() or transforms_are_active()
        if opaque or values.is_meta or type(values) is not Tensor:  # a FakeTensor
            return op(values, list(limits))
        check(values, limits)
        return values

    return run


_check_positions = check_of(
    "every position has a row",
    lambda ids, max_len, lowest: ((ids >= lowest) & (ids < max_len)).all(),
    _which_has_no_row,
)


@explains_errors
def check_positions(position_ids: Tensor, max_len: int, *, lowest: int = 0) -> Tensor:
    """Returns position_ids (...), of any integer dtype, as int64 (...), after checking that lowest <= id < max_len.

    Raises:
        ArgumentError: ids that are not integers.
        PositionError: an id out of range.

    Examples:
        >>> import torch
        >>> from posembed.errors import PositionError
        >>> from posembed.positions import check_positions
        >>> check_positions(torch.tensor([0, 511]), max_len=512).tolist()
        [0, 511]
        >>> try:
        ...     check_positions(torch.tensor([512]), max_len=512)
        ... except PositionError:
        ...     print("no row")
        no row
    """
    return _check_positions(as_int64(position_ids, "position_ids"), max_len, lowest)


def _which_is_negative(offset: int | Tensor) -> Exception:
    least = offset.min().item() if isinstance(offset, Tensor) else offset
    return ArgumentError(f"offset counts the tokens that came before: 0, 1, 2, ...; got {least}")


_check_offset = check_of("no offset is negative", lambda offset: (offset >= 0).all(), _which_is_negative)


def check_offset(offset: int | Tensor) -> int | Tensor:
    """Returns the offset, a number or an int64 tensor () or (B,), after checking that it is not negative."""
    if isinstance(offset, Tensor):
        require_integers(offset, "offset")
        if offset.dim() > 1:
            raise ArgumentError(f"offset must be a number or (B,), one per sequence; got shape {tuple(offset.shape)}")
        return _check_offset(offset.to(torch.int64))
    require_whole(offset, "offset")
    if offset < 0:
        raise _which_is_negative(offset)
    return offset


check_within = check_of(
    "every position is within its text",
    lambda ids, length: (ids < length).all(),
    lambda ids, length: ArgumentError(
        f"text_length counts all tokens of a text, so it is above every position; got {length} for position "
        f"{int(ids.max())}"
    ),
)
"""Returns position_ids (int64, any shape) after checking that each is below ``length``, the length of its text."""


def _what_is_no_mask(mask: Tensor) -> Exception:
    other = mask[(mask != 0) & (mask != 1)]
    if other.numel():
        return ArgumentError(
            f"a mask must be 1 for tokens and 0 for padding; got {other[0].item()}. Turn an additive mask (0 and "
            "-inf) into one with mask == 0"
        )
    rows = (mask == 0).all(dim=-1).nonzero().flatten().tolist()
    row = f"row {rows[0]} of " if mask.dim() > 1 else ""
    return ArgumentError(f"{row}the mask holds only padding, but each text needs a token. Leave that text out")


_check_mask = check_of(
    "a mask is 0 or 1 with a token in each row",
    lambda mask: ((mask == 1) | (mask == 0)).all() & (mask == 1).any(dim=-1).all(),
    _what_is_no_mask,
)


def check_mask(mask: Tensor) -> Tensor:
    """Converts a mask (L,) or (B, L) of 0 and 1, any dtype, to bool, after checking that every row has a token."""
    if not isinstance(mask, Tensor):
        raise ArgumentError(f"a mask must be a tensor of 0 and 1; got {mask!r}")
    if mask.dim() not in (1, 2):
        raise ArgumentError(f"a mask must be (L,) or (B, L), one number for each token; got shape {tuple(mask.shape)}")
    return _check_mask(mask).bool() if mask.shape[-1] else mask.bool()


check_mask_unchanged = check_of(
    "the mask of the tokens in a cache stays as it was",
    lambda changed: ~changed.any(),
    lambda changed: ArgumentError(
        f"the mask differs at {int(changed.sum())} tokens that are in the cache already, whose positions follow from "
        "the mask they were read with. Pass the same mask for them, or only the mask of the new tokens"
    ),
)
"""Takes booleans, True where the mask of a cached token has changed. Returns them if none is True."""


def wrong_image(tokens: int, expected: int) -> ArgumentError:
    """Returns the error for an image whose number of tokens does not fit its encoding's grid."""
    return ArgumentError(
        f"each image must have {expected} tokens, as the encoding's grid says; got {tokens}. Take the encoding's "
        "on_grid((height, width)) for these images, or pass the position_ids of the tokens"
    )


check_image_tokens = check_of(
    "every image has the tokens of its grid",
    lambda tokens, expected: (tokens == expected).all(),
    lambda tokens, expected: wrong_image(int(tokens[tokens != expected][0]), expected),
)
"""Takes the numbers of tokens of images (...) and the expected number. Returns the numbers if all are as expected."""


def _which_bound_is_wrong(bounds: Tensor, length: int) -> Exception:
    got = f"{int(bounds[0])} to {int(bounds[-1])}"
    if (int(bounds[0]), int(bounds[-1])) == (0, length):
        at = int((bounds.diff() <= 0).nonzero()[0])
        got = f"{int(bounds[at + 1])} after {int(bounds[at])}. Leave empty sequences out: unique_consecutive()"
    return ArgumentError(f"cu_seqlens must rise from 0 to the length of the packed input, {length}; got {got}")


_check_bounds = check_of(
    "cu_seqlens rise from 0 to the length",
    lambda bounds, length: (bounds[..., 0] == 0).all() & (bounds.diff() > 0).all() & (bounds[..., -1] == length).all(),
    _which_bound_is_wrong,
)


def check_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """Checks that cu_seqlens (S + 1,), of any integer dtype, rises from 0 to length, and returns it as int64."""
    require_integers(cu_seqlens, "cu_seqlens")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ArgumentError(f"cu_seqlens must be (number of sequences + 1,); got shape {tuple(cu_seqlens.shape)}")
    return _check_bounds(cu_seqlens.to(torch.int64), length)
