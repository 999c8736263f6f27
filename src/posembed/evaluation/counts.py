"""Counts from running a language model on texts: losses and correct predictions.

The model predicts the tokens of a text that is fed in chunks of one length. Chunks are counted from the end of each
text, so that the last tokens always have a whole chunk as their context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.evaluation.texts import Sample

Counts = Mapping[str, tuple[Tensor, Tensor]]
"""The sum of the values of each item and its weight, by measure. The values of a perplexity are losses."""

Tick = Callable[[int], None]
"""A function called after each batch with its number of tokens."""

MASKED_SHARE = 0.15
TOKENS_PER_BATCH = 4096

FITS: dict[str, Callable[[Tensor, int], Sequence[Tensor]]] = {
    "whole": lambda texts, limit: (texts,),
    "truncated": lambda texts, limit: (texts[:, :limit],),
    "chunked": lambda texts, limit: texts.split(limit, dim=1),
    "sliding": lambda texts, limit: [texts[:, columns] for columns in windows(texts.shape[1], limit, sliding=True)],
}
"""Ways to feed texts (N, W) to a model that takes ``limit`` tokens. Each function returns the chunks to feed."""


def causal_counts(
    model: nn.Module,
    sample: Sample,
    *,
    length: int,
    last: int,
    sliding: bool = False,
    tick: Tick = lambda tokens: None,
) -> Counts:
    """Returns the summed losses in nats and the numbers of predicted tokens, for each text and for its last tokens.

    Each value is (N,). model: a model with logits (B, L, V) for ids (B, L). length: tokens per chunk, including special
    tokens. last: the number of last tokens of a text; they have nearly ``length`` tokens of context. sliding: whether
    each chunk overlaps the one before it by half and only its new tokens count, so that all tokens but the first have
    at least half a chunk of context.
    """
    losses, predicted = causal_losses(model, sample, length=length, sliding=sliding, tick=tick)
    losses = losses.double()  # zero where nothing was predicted
    return {
        "perplexity": (losses.sum(dim=1), predicted.sum(dim=1)),
        "perplexity of the last tokens": (losses[:, -last:].sum(dim=1), predicted[:, -last:].sum(dim=1)),
    }


def causal_losses(
    model: nn.Module, sample: Sample, *, length: int, sliding: bool = False, tick: Tick = lambda tokens: None
) -> tuple[Tensor, Tensor]:
    """Returns losses (N, W) in nats, as float32 on the CPU, and a boolean mask (N, W) of the predicted tokens.

    The first token of a chunk is not predicted if the tokenizer puts no special token before it.
    """
    losses = torch.zeros(sample.ids.shape)
    predicted = torch.zeros(sample.ids.shape, dtype=torch.bool)
    begin = len(sample.before)
    first = max(begin, 1)
    for rows, columns in batches(sample.ids, length - begin, sliding=sliding):
        ids, output = run_on(model, sample.ids[rows, columns], sample.before)
        logits = output.logits[:, first - 1 : -1].float()
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, first:], reduction="none")
        known = max(int(predicted[rows.start, columns].sum()), first - begin)  # tokens that overlap the chunk before
        losses[rows, columns][:, known:] = loss.cpu()[:, known - (first - begin) :]
        predicted[rows, columns][:, known:] = True
        tick(sample.ids[rows, columns].numel())
    return losses, predicted


def masked_counts(
    model: nn.Module,
    sample: Sample,
    *,
    length: int,
    seed: int,
    sliding: bool = False,
    tick: Tick = lambda tokens: None,
) -> Counts:
    """Returns the numbers (N,) of correct predictions, the summed losses in nats, and the numbers of masked tokens.

    A seeded random 15% of the tokens are masked, all at once, and the same tokens at every length. (Salazar et al.,
    arXiv:1910.14659, mask one token at a time, which takes one run of the model per token.) sliding: whether each chunk
    overlaps the one before it by half, and each token counts in the chunk in which it is farther from the ends.
    """
    if sample.mask is None:
        raise CheckpointError("the tokenizer has no mask token; save the model's own tokenizer next to its weights")
    drawn = torch.rand(sample.ids.shape, generator=torch.Generator().manual_seed(seed))
    masked = (drawn < MASKED_SHARE) | (drawn == drawn.min())  # at least one
    losses = torch.zeros(sample.ids.shape, dtype=torch.float64)
    correct = torch.zeros(sample.ids.shape, dtype=torch.bool)
    begin, chunk = len(sample.before), length - sample.specials
    for rows, columns in batches(sample.ids, chunk, sliding=sliding):
        answers, chosen = sample.ids[rows, columns], masked[rows, columns]
        ids, output = run_on(model, answers.masked_fill(chosen, sample.mask), sample.before, sample.after)
        if columns.start:  # the chunk before counts for the first half of their overlap
            chosen = chosen & (torch.arange(chosen.shape[1]) >= (chunk - step_of(chunk, sliding)) // 2)
        predicted = output.logits[:, begin : begin + answers.shape[1]][chosen.to(ids.device)].float()
        expected = answers[chosen].to(ids.device)
        losses[rows, columns][chosen] = F.cross_entropy(predicted, expected, reduction="none").double().cpu()
        correct[rows, columns][chosen] = (predicted.argmax(-1) == expected).cpu()
        tick(answers.numel())
    number = masked.sum(dim=1)
    return {"masked-token accuracy": (correct.sum(dim=1), number), "pseudo-perplexity": (losses.sum(dim=1), number)}


def windows(width: int, chunk: int, *, sliding: bool) -> Iterator[slice]:
    """Yields slices of at most ``chunk`` columns, counted from the end, that cover ``width`` columns.

    sliding: whether each slice overlaps the one before it by half. Otherwise they do not overlap.
    """
    step = step_of(chunk, sliding)
    for stop in range(width % step or min(step, width), width + 1, step):
        if stop + step > min(chunk, width):  # otherwise the next slice holds this one
            yield slice(max(0, stop - chunk), stop)


def step_of(chunk: int, sliding: bool) -> int:
    return max(1, chunk // 2) if sliding else chunk


def batches(ids: Tensor, chunk: int, *, sliding: bool = False) -> Iterator[tuple[slice, slice]]:
    """Yields slices (rows, columns) that cover ids (N, W). The columns are those of ``windows``."""
    texts, width = ids.shape
    for columns in windows(width, chunk, sliding=sliding):
        number = max(1, TOKENS_PER_BATCH // (columns.stop - columns.start))
        for start in range(0, texts, number):
            yield slice(start, start + number), columns


def run_on(model: nn.Module, ids: Tensor, before: tuple[int, ...], after: tuple[int, ...] = ()) -> tuple[Tensor, Any]:
    """Runs a model on ids (B, L) with special tokens around each row. Returns the fed ids and the model's output."""
    front, back = (torch.tensor(tokens, dtype=ids.dtype).expand(len(ids), -1) for tokens in (before, after))
    fed = torch.cat([front, ids, back], dim=1).to(next(model.parameters()).device)
    return fed, model(input_ids=fed, attention_mask=torch.ones_like(fed))
