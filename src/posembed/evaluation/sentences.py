"""Retrieval: whether the embedding of a long text is found by a passage of that text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.evaluation.texts import Sample
from posembed.evaluation.tokens import Tick, batches, run_on

PASSAGES = {"beginning": 0.05, "middle": 0.5, "end": 0.95}
"""Where passages start, as a share of the way from the first possible start to the last."""

FITS: dict[str, Callable[[Tensor, int], Sequence[Tensor]]] = {
    "whole": lambda texts, limit: (texts,),
    "truncated": lambda texts, limit: (texts[:, :limit],),
    "chunked": lambda texts, limit: texts.split(limit, dim=1),
}
"""Ways to feed texts (N, W) to a model that takes ``limit`` tokens: the chunks, (N, at most limit) each."""

Encode = Callable[[Tensor], Tensor]
"""ids (N, L) without special tokens -> (N, D)."""

# (B, L, D) -> (B, D). All texts of a batch have the same length, so there is no padding to exclude.
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(dim=1),
    "cls": lambda states: states[:, 0],
    "max": lambda states: states.amax(dim=1),
}


def retrieval_ranks(encode: Encode, texts: Tensor, *, fit: str, limit: int, passage: int) -> dict[str, Tensor]:
    """The rank of each text's own vector among the vectors of all texts, for a passage from each place, (N,) each.

    Args:
        encode: the encoder.
        texts: (N, W) ids without special tokens. Passages are taken from all of a text, whatever ``fit`` is.
        fit: the key in ``FITS`` that says which chunks are embedded. limit: tokens per chunk.
        passage: tokens per query.
    """
    answers = embed_texts(encode, FITS[fit](texts, limit))
    return {
        place: ranks_of_own(F.normalize(encode(passages(texts, share, passage)), dim=1), answers)
        for place, share in PASSAGES.items()
    }


def embed_texts(encode: Encode, chunks: Sequence[Tensor]) -> Tensor:
    """(N, D): unit vectors, the means of the unit vectors of a text's chunks, weighted by their numbers of tokens."""
    weighted = (ids.shape[1] * F.normalize(encode(ids), dim=1) for ids in chunks)
    return F.normalize(sum(weighted, torch.zeros(())), dim=1)


def passages(texts: Tensor, share: float, size: int) -> Tensor:
    """(N, W) -> (N, size)."""
    start = round(share * (texts.shape[1] - size))
    return texts[:, start : start + size]


def ranks_of_own(queries: Tensor, answers: Tensor) -> Tensor:
    """Queries (N, D), answers (N, D) -> (N,) int64: the rank of answer i for query i, after all ties and NaN."""
    scores = queries @ answers.T
    return (~(scores < scores.diagonal()[:, None])).sum(dim=1)


def encoder(model: nn.Module, sample: Sample, pooling: str, *, tick: Tick = lambda tokens: None) -> Encode:
    """Embeds texts with a transformers model and pools as sentence-transformers does: "mean", "cls" or "max".

    Special tokens are added to each text and pooled with its tokens. The vectors are float32, on the CPU.
    """

    def encode(ids: Tensor) -> Tensor:
        vectors = []
        for rows, _ in batches(ids, ids.shape[1]):
            _, output = run_on(model, ids[rows], sample.before, sample.after)
            vectors.append(POOL[pooling](output.last_hidden_state.float()).cpu())
            tick(ids[rows].numel())
        return torch.cat(vectors)

    return encode
