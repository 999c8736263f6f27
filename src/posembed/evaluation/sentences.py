"""How well the embedding of a long text still finds that text, asked for with a passage of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.evaluation.texts import Sample
from posembed.evaluation.tokens import Tick, batches, device_of, surrounded

PLACES = {"beginning": 0.05, "middle": 0.5, "end": 0.95}
"""Where the passages are taken, as a share of the way from the first possible place to the last."""

Encode = Callable[[Tensor], Tensor]
"""ids (N, L), without special tokens -> (N, D)."""


def retrieval_ranks(encode: Encode, texts: Tensor, *, piece: int, passage: int, cut: bool = False) -> dict[str, Tensor]:
    """The rank of each text's own vector among those of all, for a passage of it from each place: (N,) each.

    Args:
        encode: the encoder.
        texts: (N, W) ids without special tokens.
        piece: how many of them are embedded at once. Where a text is longer, its vector is the mean of its pieces'
            unit vectors, weighted by their tokens.
        passage: how many tokens a query has.
        cut: embed only the first piece, whatever place the passages are from.
    """
    answers = embed_texts(encode, texts[:, :piece] if cut else texts, piece=piece)
    return {
        place: ranks_of_own(F.normalize(encode(passages(texts, share, passage)), dim=1), answers)
        for place, share in PLACES.items()
    }


def embed_texts(encode: Encode, texts: Tensor, *, piece: int) -> Tensor:
    """texts (N, W) -> (N, D), unit vectors."""
    pieces = texts.split(piece, dim=1)
    return F.normalize(sum(ids.shape[1] * F.normalize(encode(ids), dim=1) for ids in pieces), dim=1)


def passages(texts: Tensor, share: float, size: int) -> Tensor:
    """(N, W) -> (N, size)."""
    start = round(share * (texts.shape[1] - size))
    return texts[:, start : start + size]


def ranks_of_own(queries: Tensor, answers: Tensor) -> Tensor:
    """Queries (N, D), answers (N, D) -> (N,) int64: the rank of answer i for query i, after all ties and NaN."""
    scores = queries @ answers.T
    return (~(scores < scores.diagonal()[:, None])).sum(dim=1)


def encoder(model: nn.Module, sample: Sample, pooling: str, *, tick: Tick = lambda tokens: None) -> Encode:
    """The embedding of texts by a transformers model, pooled as sentence-transformers does: "mean", "cls", "max".

    Special tokens are put around each text and pooled with the others. float32, on the CPU.
    """

    def encode(ids: Tensor) -> Tensor:
        vectors = []
        for rows, _ in batches(ids, ids.shape[1]):
            batch = surrounded(ids[rows], sample.before, sample.after).to(device_of(model))
            states = model(input_ids=batch, attention_mask=torch.ones_like(batch)).last_hidden_state.float()
            vectors.append(POOL[pooling](states).cpu())
            tick(ids[rows].numel())
        return torch.cat(vectors)

    return encode


# (B, L, D) -> (B, D). All texts of a batch are of one length, so there is no padding to leave out.
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(dim=1),
    "cls": lambda states: states[:, 0],
    "max": lambda states: states.amax(dim=1),
}
