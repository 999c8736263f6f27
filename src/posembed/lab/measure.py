"""Measures the quality of a trained language model at several context lengths, on held-out text.

Perplexity in non-overlapping windows (Press et al. 2021, arXiv:2108.12409) is not enough. Longer windows lower it for
every model, because fewer of their tokens have a short context, and a low perplexity does not prove that the model uses
distant tokens. There are therefore three more measures: the loss of the same tokens with each length of context, the
loss of the same text in chunks of the training length, and a probe of whether the model recognises an earlier passage.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posembed.errors import DataError, PositionError
from posembed.lab.model import token_losses
from posembed.lab.tasks.text_specs import (
    BITS,
    CHUNKED_SAME,
    CHUNKED_WHOLE,
    REPEAT_GAIN,
    SAME_TOKENS,
    WHOLE_WINDOWS,
)
from posembed.measure.metrics import Metric

TOKENS_AT_ONCE = 16384
PROBES = 64

LossOfTokens = Callable[[Tensor], Tensor]
"""Maps token ids (N, c + 1) to losses (N, c). Each token except the first is predicted from the tokens before it."""


def everything(
    loss: LossOfTokens,
    held_out: Tensor,
    *,
    train_length: int,
    test_lengths: tuple[int, ...],
    tokens: int,
    held_out_bytes: Tensor | None,
) -> dict[Metric, dict[int, float | None]]:
    """Measures one model at every test length, with about ``tokens`` tokens of held-out text per length.

    held_out_bytes: the number of bytes in each held-out token; None if unknown.

    Returns mean losses in nats per token, by test length; None where the encoding has no position:
        WHOLE_WINDOWS: of all tokens, in non-overlapping windows of each length, as in the ALiBi paper.
        SAME_TOKENS: of the same tokens (the last tokens of each longest window), with each length of context.
        CHUNKED_WHOLE: of all tokens, if each window of WHOLE_WINDOWS is fed in chunks of the training length.
        CHUNKED_SAME: of the same tokens, if their context is also fed in chunks.
        BITS: those of WHOLE_WINDOWS in bits per byte. Empty if the bytes are unknown.
        REPEAT_GAIN: how much lower the loss of a passage is at its repetition, by the number of tokens in between.
    """
    loss = once_each(loss)
    longest = windows(held_out, max(test_lengths), tokens)
    shorter = {n: shorter_windows(longest, n) for n in test_lengths}
    last = {n: longest[:, -n - 1 :] for n in test_lengths}
    # The number of tokens that are compared at every length, so it must fit into the shortest window.
    count = min(max(train_length // 2, 1), min(test_lengths))
    passage = passage_length(train_length)
    whole = {n: mean_or_none(loss, shorter[n]) for n in test_lengths}
    size_of = {n: bytes_per_token(held_out_bytes, n, max(test_lengths), tokens) for n in test_lengths}
    return {
        SAME_TOKENS: {n: mean_or_none(loss, last[n], slice(-count, None)) for n in test_lengths},
        WHOLE_WINDOWS: whole,
        CHUNKED_SAME: {
            n: last_tokens_in_chunks(loss, last[n], train_length, count).mean().item() for n in test_lengths
        },
        CHUNKED_WHOLE: {n: in_chunks(loss, shorter[n], train_length).mean().item() for n in test_lengths},
        BITS: {n: bits_per_byte(whole[n], size) for n, size in size_of.items() if size is not None},
        REPEAT_GAIN: {gap: repeat_gain(loss, held_out, gap, passage) for gap in gaps(train_length)},
    }


def bits_per_byte(loss: float | None, bytes_per_token: float) -> float | None:
    """Converts a loss in nats per token to bits per byte of text."""
    return None if loss is None else loss / math.log(2) / bytes_per_token


def check(held_out: Tensor, *, train_length: int, test_lengths: tuple[int, ...]) -> None:
    """Raises DataError if there is too little text for ``everything``."""
    needed = max(max(test_lengths) + 1, 3 * passage_length(train_length) + max(gaps(train_length)))
    if len(held_out) < needed:
        raise DataError(
            f"the held-out text has {len(held_out):,} tokens, and test lengths up to {max(test_lengths):,} after "
            f"a training length of {train_length:,} need {needed:,}; give more text, or shorter lengths"
        )


def tokens_measured(train_length: int, test_lengths: tuple[int, ...], tokens: int) -> int:
    """Estimates how many tokens ``everything`` feeds to the model."""
    rows = max(tokens // max(test_lengths), 1)
    probes = sum(2 * PROBES * (2 * passage_length(train_length) + gap) for gap in gaps(train_length))
    once_more = sum(test_lengths) - max(test_lengths)  # for same_tokens; its longest windows are counted already
    return tokens * (len(test_lengths) + 1) + rows * once_more + probes


def gaps(train_length: int) -> tuple[int, ...]:
    """Returns the numbers of tokens between a passage and its repetition: from 0.5 to 4 times the training length."""
    return tuple(max(round(train_length * times), 1) for times in (0.5, 1, 2, 4))


def passage_length(train_length: int) -> int:
    """Returns a quarter of the training length, so that a passage, the shortest gap and the repetition fit into it."""
    return max(train_length // 4, 2)


def windows(held_out: Tensor, length: int, tokens: int) -> Tensor:
    """Returns about ``tokens`` tokens in non-overlapping windows (N, length + 1), spread evenly over the text."""
    available = (len(held_out) - 1) // length
    count = min(available, max(tokens // length, 1))
    starts = (torch.arange(count) * available // count) * length
    return held_out[starts.unsqueeze(1) + torch.arange(length + 1)].long()


def bytes_per_token(held_out_bytes: Tensor | None, length: int, longest: int, tokens: int) -> float | None:
    """Returns the mean number of bytes per predicted token in windows of ``length``, made by splitting the windows of
    ``longest``. Returns None if the bytes are unknown."""
    if held_out_bytes is None:
        return None
    return shorter_windows(windows(held_out_bytes, longest, tokens), length)[:, 1:].double().mean().item()


@torch.no_grad()
def losses(model: torch.nn.Module, inputs: Tensor, targets: Tensor, device: torch.device) -> Tensor:
    """Returns the losses (N, c) of targets (N, c) in nats, in float64 on the CPU; 0 for targets of -100, which are not
    predicted. Runs a few windows at once."""
    found, rows = [], max(TOKENS_AT_ONCE // (inputs.size(1) + 1), 1)
    for some, wanted in zip(inputs.split(rows), targets.split(rows), strict=True):
        found.append(token_losses(model(some.to(device)), wanted.to(device)).double().cpu())
    return torch.cat(found)


def mean_or_none(loss: LossOfTokens, rows: Tensor, counted: slice = slice(None)) -> float | None:
    """Returns the mean loss of the counted columns; None if the encoding has no position for some token."""
    try:
        return loss(rows)[:, counted].mean().item()
    except PositionError:
        return None


def shorter_windows(longest: Tensor, length: int) -> Tensor:
    """Splits windows (N, c + 1) into shorter windows (N * (c // length), length + 1) and drops the remainder."""
    return longest.unfold(1, length + 1, length).flatten(0, 1)


def in_chunks(loss: LossOfTokens, rows: Tensor, length: int) -> Tensor:
    """Returns the losses (N, c) of token ids (N, c + 1) that the model reads in chunks of ``length`` tokens. The last
    chunk may be shorter."""
    total = rows.size(1) - 1
    if total % length == 0:
        return loss(shorter_windows(rows, length)).reshape(len(rows), total)
    chunks = [rows[:, start : min(start + length, total) + 1] for start in range(0, total, length)]
    return torch.cat([loss(chunk) for chunk in chunks], dim=1)


def last_tokens_in_chunks(loss: LossOfTokens, rows: Tensor, length: int, count: int) -> Tensor:
    """Returns the last ``count`` columns of ``in_chunks``, but runs the model only on the chunks that contain them."""
    total = rows.size(1) - 1
    start = (total - count) // length * length
    return in_chunks(loss, rows[:, start:], length)[:, -count:]


def once_each(loss: LossOfTokens) -> LossOfTokens:
    """Returns ``loss`` with a cache, because windows of all lengths share their chunks of the training length."""
    known: dict[tuple[torch.Size, bytes], Tensor] = {}

    def remembered(ids: Tensor) -> Tensor:
        key = ids.shape, ids.numpy().tobytes()
        if key not in known:
            known[key] = loss(ids)
        return known[key]

    return remembered


def repeat_gain(loss: LossOfTokens, held_out: Tensor, gap: int, passage: int) -> float | None:
    """Returns how much lower the loss of a passage is, in nats per token, if it also occurs ``gap`` tokens earlier.

    The control sequence has another passage in that place and is otherwise the same. The passage's first token is not
    counted, because the text before it does not predict it. Returns None if the encoding has no position for a token.
    """
    needed = 3 * passage + gap
    last = len(held_out) - needed
    starts = torch.linspace(0, last, min(PROBES, last + 1)).long()
    text = held_out[starts.unsqueeze(1) + torch.arange(needed)].long()
    # The filler follows neither passage in the text, so the first passage ends abruptly in both sequences.
    filler = text[:, passage + passage // 2 :][:, :gap]
    probed, other = text[:, :passage], text[:, -passage:]
    seen, unseen = (torch.cat((first, filler, probed), dim=1) for first in (probed, other))
    counted = slice(1 - passage, None)
    without, with_it = mean_or_none(loss, unseen, counted), mean_or_none(loss, seen, counted)
    return None if without is None or with_it is None else without - with_it
