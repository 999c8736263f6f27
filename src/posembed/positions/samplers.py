"""Random positions for training, so that rows past the length of the training sequences are trained too.

Each function draws from ``generator`` on its device; the same seed gives the same result. For evaluation
use consecutive ids, or ``abacus`` and ``coupled`` without the random start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.arguments import Integer, checks_arguments
from posembed.errors import ArgumentError
from posembed.settings import Amount, Count

Source = torch.Generator | None
"""The source of random numbers; None means torch's default generator, on the CPU."""


@checks_arguments
def shifted(batch: Amount, length: Amount, *, max_shift: Amount, generator: Source = None) -> Integer[Tensor, "B L"]:
    """Draws a start k ~ U{0 .. max_shift} for each sequence and counts from it: (B, L) (SHAPE, arXiv:2109.05644).

    Raises:
        ArgumentError: a negative max_shift.

    Examples:
        >>> import torch
        >>> from posembed.positions import shifted
        >>> ids = shifted(2, 5, max_shift=100, generator=torch.Generator().manual_seed(0))
        >>> ids.shape, (ids[:, 1:] - ids[:, :-1]).unique().tolist()  # each sequence is consecutive
        (torch.Size([2, 5]), [1])
    """
    starts = _integers((batch, 1), max_shift, generator)
    return starts + torch.arange(length, device=starts.device)


@checks_arguments
def randomized(batch: Amount, length: Amount, *, max_len: Amount, generator: Source = None) -> Integer[Tensor, "B L"]:
    """Draws L distinct, sorted positions from 0 .. max_len - 1 for each sequence: (B, L) (arXiv:2305.16843).

    Raises:
        ArgumentError: more tokens than positions.

    Examples:
        >>> import torch
        >>> from posembed.positions import randomized
        >>> ids = randomized(2, 5, max_len=100, generator=torch.Generator().manual_seed(0))
        >>> ids.shape, bool((ids[:, 1:] > ids[:, :-1]).all())
        (torch.Size([2, 5]), True)
    """
    _require_room(length, max_len)
    return _distinct(batch, length, max_len, generator)


@checks_arguments
def skipped(
    batch: Amount, length: Amount, *, max_len: Amount, chunks: Count = 2, generator: Source = None
) -> Integer[Tensor, "B L"]:
    """Draws random skips between chunks of consecutive ids: (B, L) (PoSE, arXiv:2309.10400, equation 4).

    Chunk i is shifted by u_i ~ U{u_(i-1) .. max_len - L}, u_0 = 0. The chunk boundaries are drawn uniformly.

    Raises:
        ArgumentError: more tokens than positions, or more chunks than tokens.

    Examples:
        >>> import torch
        >>> from posembed.positions import skipped
        >>> ids = skipped(2, 5, max_len=100, generator=torch.Generator().manual_seed(0))
        >>> ids.shape, bool((ids[:, 1:] > ids[:, :-1]).all())
        (torch.Size([2, 5]), True)
    """
    _require_room(length, max_len)
    if chunks > max(length, 1):
        raise ArgumentError(f"chunks must be 1 .. length = {length}; got {chunks}")
    parts = _distinct(batch, chunks - 1, max(length - 1, 0), generator) + 1  # where chunks 1, 2, ... begin
    skips = [torch.zeros(batch, dtype=torch.int64, device=parts.device)]
    for draw in _uniform((chunks - 1, batch), generator):
        skips.append(skips[-1] + (draw * (max_len - length - skips[-1] + 1)).long())
    places = torch.arange(length, device=parts.device)
    chunk = (places >= parts[..., None]).sum(dim=1)
    return places + torch.stack(skips, dim=1).gather(1, chunk)


@checks_arguments
def abacus(
    token_ids: Integer[Tensor, "B L"],
    digit_ids: Integer[Tensor, "... digits"],
    *,
    max_shift: Amount = 0,
    generator: Source = None,
) -> Integer[Tensor, "B L"]:
    """Numbers each number's digits from 1 + k, k ~ U{0 .. max_shift} per batch. Other tokens get 0 (arXiv:2405.17399).

    Numbers in token_ids (B, L) are written least significant digit first. digit_ids are the token ids of the digits.
    Returns (B, L). The paper trains with ``max_shift=99``.

    Raises:
        ArgumentError: ids that are not integers, or a negative max_shift.

    Examples:
        >>> import torch
        >>> from posembed.positions import abacus
        >>> digits, plus = torch.arange(10), 10
        >>> abacus(torch.tensor([[3, 5, 6, plus, 9, 4]]), digits).tolist()  # 653 + 49, lowest digit first
        [[1, 2, 3, 0, 1, 2]]
    """
    digits = _digits(token_ids, digit_ids)
    shift = _integers((1,), max_shift, generator).to(token_ids.device)
    return torch.where(digits, _place_in_run(digits) + shift, 0)


@checks_arguments
def coupled(
    token_ids: Integer[Tensor, "B L"],
    digit_ids: Integer[Tensor, "... digits"],
    equals_id: int,
    *,
    max_start: Count = 1,
    generator: Source = None,
) -> Integer[Tensor, "B L"]:
    """Gives digits of equal significance the same id, from a start ~ U{1 .. max_start} per sequence (arXiv:2405.20671).

    token_ids (B, L) are texts such as ``653+49=207``: operands have their most significant digit first; the answer,
    after ``equals_id``, has its least significant digit first. The symbol after an operand gets the start, the digit
    of 10^s gets start + 1 + s, and every other token gets 0: (B, L). (The paper counts down, which gives the same
    model with mirrored rows.)

    Raises:
        ArgumentError: ids that are not integers, or a max_start below 1.

    Examples:
        >>> import torch
        >>> from posembed.positions import coupled
        >>> digits, plus, equals = torch.arange(10), 10, 11
        >>> sum_ = torch.tensor([[6, 5, 3, plus, 4, 9, equals, 2, 0, 7]])  # 653 + 49 = 702, answer reversed
        >>> coupled(sum_, digits, equals).tolist()
        [[4, 3, 2, 1, 3, 2, 1, 2, 3, 4]]
    """
    digits = _digits(token_ids, digit_ids)
    answer = (token_ids == equals_id).cumsum(-1) > 0  # from the equals sign on
    from_the_end = _place_in_run(digits.flip(-1)).flip(-1)
    closes_operand = ~digits & _one_later(digits) & ~_one_later(answer)
    start = _integers((token_ids.shape[0], 1), max_start - 1, generator)
    start = 1 + start.to(token_ids.device)
    significance = torch.where(answer, _place_in_run(digits), from_the_end)
    return torch.where(digits, start + significance, torch.where(closes_operand, start, 0))


def _digits(token_ids: Tensor, digit_ids: Integer[Tensor, "... digits"]) -> Tensor:
    return torch.isin(token_ids, digit_ids.to(token_ids.device))


def _place_in_run(member: Tensor) -> Tensor:
    """Numbers the True entries of each run in a boolean mask (..., L) from 1."""
    places = torch.arange(1, member.shape[-1] + 1, device=member.device)
    last_outside = torch.where(member, 0, places).cummax(-1).values
    return places - last_outside


def _one_later(member: Tensor) -> Tensor:
    """Returns a boolean mask (..., L), True where the previous token is a member."""
    return torch.cat((torch.zeros_like(member[..., :1]), member[..., :-1]), dim=-1)


def _uniform(shape: tuple[int, ...], generator: Source) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, generator=generator, device=device)


def _integers(shape: tuple[int, ...], most: int, generator: Source) -> Tensor:
    """Draws integers from U{0 .. most}."""
    device = "cpu" if generator is None else generator.device
    return torch.randint(most + 1, shape, generator=generator, device=device)


def _distinct(batch: int, count: int, below: int, generator: Source) -> Tensor:
    """Draws ``count`` distinct, sorted integers from 0 .. below - 1 for each row: (B, count)."""
    return _uniform((batch, below), generator).argsort(dim=-1)[:, :count].sort(dim=-1).values


def _require_room(length: int, max_len: int) -> None:
    if length > max_len:
        raise ArgumentError(f"{length} tokens need {length} different positions; max_len={max_len} has fewer")
