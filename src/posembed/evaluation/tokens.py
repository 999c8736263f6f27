"""How well a language model predicts the tokens of a text, fed in pieces of one length.

Pieces are counted from the end of each text, so that the last tokens always have one whole piece as their context.
All lengths are measured on the same tokens of the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.evaluation.texts import Sample

Tick = Callable[[int], None]
"""Told the number of tokens after each batch."""

MASKED_SHARE = 0.15
TOKENS_A_BATCH = 4096


def causal_counts(
    model: nn.Module, sample: Sample, *, length: int, last: int, tick: Tick = lambda tokens: None
) -> dict[str, Tensor]:
    """Losses in nats and numbers of tokens, summed over each text, and over its last tokens: (N,) each.

    Args:
        model: gives logits (B, L, V) for ids (B, L).
        length: how many tokens it is fed at once, special ones included.
        last: how many tokens of each text the second sums are over. They see nearly ``length`` tokens each.
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
    """Losses (N, W) in nats, float32, on the CPU, and which of them there are, (N, W) bool.

    The first token of a piece has none where the tokenizer puts no special token before it.
    """
    losses = torch.zeros(sample.ids.shape)
    predicted = torch.zeros(sample.ids.shape, dtype=torch.bool)
    begin = len(sample.before)
    first = max(begin, 1)
    for rows, columns in batches(sample.ids, length - begin):
        ids = surrounded(sample.ids[rows, columns], sample.before).to(device_of(model))
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        lost = F.cross_entropy(logits[:, first - 1 : -1].float().transpose(1, 2), ids[:, first:], reduction="none")
        losses[rows, columns][:, first - begin :] = lost.cpu()
        predicted[rows, columns][:, first - begin :] = True
        tick(sample.ids[rows, columns].numel())
    return losses, predicted


def masked_counts(
    model: nn.Module,
    sample: Sample,
    *,
    length: int,
    seed: int,
    tick: Tick = lambda tokens: None,
) -> dict[str, Tensor]:
    """Three results per text, (N,) each: hidden tokens, hidden tokens found, and the sum of their losses.

    A seeded 15 % of the tokens are replaced by the mask token, all at once and the same at every length. (Salazar
    et al., 1910.14659, hide one token at a time, which takes a run of the model for each.)
    """
    if sample.mask is None:
        raise CheckpointError("the tokenizer has no mask token; expected one beside a masked language model")
    hidden = torch.rand(sample.ids.shape, generator=torch.Generator().manual_seed(seed)) < MASKED_SHARE
    losses = torch.zeros(sample.ids.shape, dtype=torch.float64)
    found = torch.zeros(sample.ids.shape, dtype=torch.bool)
    for rows, columns in batches(sample.ids, length - sample.specials):
        answers, chosen = sample.ids[rows, columns], hidden[rows, columns]
        ids = surrounded(answers.masked_fill(chosen, sample.mask), sample.before, sample.after)
        ids = ids.to(device_of(model))
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        begin = len(sample.before)
        predicted = logits[:, begin : begin + answers.shape[1]][chosen.to(ids.device)].float()
        expected = answers[chosen].to(ids.device)
        losses[rows, columns][chosen] = F.cross_entropy(predicted, expected, reduction="none").double().cpu()
        found[rows, columns][chosen] = (predicted.argmax(-1) == expected).cpu()
        tick(answers.numel())
    return {"hidden": hidden.sum(dim=1), "found": found.sum(dim=1), "loss": losses.sum(dim=1)}


def batches(ids: Tensor, piece: int) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) that cover ids (N, W) once, each of at most ``piece`` columns, counted from the last."""
    texts, width = ids.shape
    for stop in range(width % piece or min(piece, width), width + 1, piece):
        columns = slice(max(0, stop - piece), stop)
        number = max(1, TOKENS_A_BATCH // (columns.stop - columns.start))
        for start in range(0, texts, number):
            yield slice(start, start + number), columns


def surrounded(ids: Tensor, before: tuple[int, ...], after: tuple[int, ...] = ()) -> Tensor:
    """ids (B, L) with special tokens around each row."""
    front, back = (torch.tensor(tokens, dtype=ids.dtype).expand(len(ids), -1) for tokens in (before, after))
    return torch.cat([front, ids, back], dim=1)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
