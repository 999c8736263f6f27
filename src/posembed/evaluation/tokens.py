"""How well a language model predicts the tokens of a text that is fed in chunks of one length.

Chunks are counted from the end of each text, so that the last tokens always have a whole chunk as their context.
All lengths are measured on the same tokens of the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.evaluation.texts import Sample

Tick = Callable[[int], None]
"""Called after each batch with its number of tokens."""

MASKED_SHARE = 0.15
TOKENS_PER_BATCH = 4096


def causal_counts(
    model: nn.Module, sample: Sample, *, length: int, last: int, tick: Tick = lambda tokens: None
) -> dict[str, Tensor]:
    """Losses in nats and numbers of predicted tokens, summed over each text and over its last tokens, (N,) each.

    Args:
        model: returns logits (B, L, V) for ids (B, L).
        length: tokens per chunk, including special tokens.
        last: how many tokens of each text the second sums cover. Their context has nearly ``length`` tokens.
    """
    losses, predicted = causal_losses(model, sample, length=length, tick=tick)
    losses = losses.double()  # zero where nothing was predicted
    return {
        "loss": losses.sum(dim=1),
        "tokens": predicted.sum(dim=1),
        "loss of the last": losses[:, -last:].sum(dim=1),
        "last tokens": predicted[:, -last:].sum(dim=1),
    }


def causal_losses(
    model: nn.Module, sample: Sample, *, length: int, tick: Tick = lambda tokens: None
) -> tuple[Tensor, Tensor]:
    """Losses (N, W) in nats, float32, on the CPU, and which tokens were predicted, (N, W) bool.

    The first token of a chunk is not predicted if the tokenizer puts no special token before it.
    """
    losses = torch.zeros(sample.ids.shape)
    predicted = torch.zeros(sample.ids.shape, dtype=torch.bool)
    begin = len(sample.before)
    first = max(begin, 1)
    for rows, columns in batches(sample.ids, length - begin):
        ids, output = run_on(model, sample.ids[rows, columns], sample.before)
        logits = output.logits
        loss = F.cross_entropy(logits[:, first - 1 : -1].float().transpose(1, 2), ids[:, first:], reduction="none")
        losses[rows, columns][:, first - begin :] = loss.cpu()
        predicted[rows, columns][:, first - begin :] = True
        tick(sample.ids[rows, columns].numel())
    return losses, predicted


def masked_counts(
    model: nn.Module, sample: Sample, *, length: int, seed: int, tick: Tick = lambda tokens: None
) -> dict[str, Tensor]:
    """Numbers of masked tokens, of correct predictions, and the sums of the losses in nats, (N,) each.

    A seeded 15% of the tokens are masked, all at once and the same tokens at every length. (Salazar et al.,
    arXiv:1910.14659, mask one token at a time, which takes one run of the model per token.)

    Raises:
        CheckpointError: the tokenizer has no mask token.
    """
    if sample.mask is None:
        raise CheckpointError(
            "the tokenizer has no mask token, and a masked language model needs one; save the model's own tokenizer "
            "next to it"
        )
    masked = torch.rand(sample.ids.shape, generator=torch.Generator().manual_seed(seed)) < MASKED_SHARE
    losses = torch.zeros(sample.ids.shape, dtype=torch.float64)
    correct = torch.zeros(sample.ids.shape, dtype=torch.bool)
    for rows, columns in batches(sample.ids, length - sample.specials):
        answers, chosen = sample.ids[rows, columns], masked[rows, columns]
        ids, output = run_on(model, answers.masked_fill(chosen, sample.mask), sample.before, sample.after)
        begin = len(sample.before)
        predicted = output.logits[:, begin : begin + answers.shape[1]][chosen.to(ids.device)].float()
        expected = answers[chosen].to(ids.device)
        losses[rows, columns][chosen] = F.cross_entropy(predicted, expected, reduction="none").double().cpu()
        correct[rows, columns][chosen] = (predicted.argmax(-1) == expected).cpu()
        tick(answers.numel())
    return {"masked": masked.sum(dim=1), "correct": correct.sum(dim=1), "loss": losses.sum(dim=1)}


def batches(ids: Tensor, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Yields (rows, columns) that cover ids (N, W) once, at most ``chunk`` columns each, counted from the end."""
    texts, width = ids.shape
    for stop in range(width % chunk or min(chunk, width), width + 1, chunk):
        columns = slice(max(0, stop - chunk), stop)
        number = max(1, TOKENS_PER_BATCH // (columns.stop - columns.start))
        for start in range(0, texts, number):
            yield slice(start, start + number), columns


def run_on(model: nn.Module, ids: Tensor, before: tuple[int, ...], after: tuple[int, ...] = ()) -> tuple[Tensor, Any]:
    """Runs a model on ids (B, L) with special tokens around each row. Returns the ids it was fed and its output."""
    front, back = (torch.tensor(tokens, dtype=ids.dtype).expand(len(ids), -1) for tokens in (before, after))
    fed = torch.cat([front, ids, back], dim=1).to(next(model.parameters()).device)
    return fed, model(input_ids=fed, attention_mask=torch.ones_like(fed))
