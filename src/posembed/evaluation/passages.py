"""How often a passage of a text retrieves the embedding of that text, among the embeddings of all texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posembed.evaluation.counts import Counts, Tick
from posembed.evaluation.ways import Encoder

PASSAGES = {"beginning": 0.05, "middle": 0.5, "end": 0.95}
"""The starts of passages, as a share of the way from the first possible start to the last."""


def passage_counts(encoder: Encoder, texts: Tensor, chunks: Sequence[Tensor], *, passage: int, tick: Tick) -> Counts:
    """Takes passages from the beginning, middle and end of each text as queries. Returns the recall at 1 and the mean
    reciprocal rank of the passages' own texts among all texts.

    texts: the ids (N, W) without special tokens from which the passages are taken. chunks: the ids of the texts to
    embed, such as ``FITS["chunked"](texts, limit)``. passage: the number of tokens of a query.
    """
    answers = embed_texts(encoder, chunks, tick)
    ranks = {
        place: ranks_of_own(encoder.whole(list(passages(texts, share, passage)), tick), answers)
        for place, share in PASSAGES.items()
    }
    one, all_ranks = torch.ones(len(texts), dtype=torch.long), list(ranks.values())
    several = len(PASSAGES) * one
    return {
        "recall at 1": (torch.stack([rank == 1 for rank in all_ranks]).sum(dim=0).double(), several),
        "mean reciprocal rank": (torch.stack([1 / rank.double() for rank in all_ranks]).sum(dim=0), several),
        **{f"recall at 1, passages from the {place}": ((rank == 1).double(), one) for place, rank in ranks.items()},
    }


def embed_texts(encoder: Encoder, chunks: Sequence[Tensor], tick: Tick = lambda tokens: None) -> Tensor:
    """Returns one unit vector per text (N, D): the normalized mean of its chunks' unit vectors, weighted by their token
    counts."""
    weighted = (ids.shape[1] * encoder.whole(list(ids), tick) for ids in chunks)
    return F.normalize(sum(weighted, torch.zeros(())), dim=1)


def passages(texts: Tensor, share: float, size: int) -> Tensor:
    start = round(share * (texts.shape[1] - size))
    return texts[:, start : start + size]


def ranks_of_own(queries: Tensor, answers: Tensor) -> Tensor:
    """Returns the rank (N,) of answer i for query i, from 1. Ties and NaN rank before it. queries, answers: (N, D)."""
    scores = queries @ answers.T
    return (~(scores < scores.diagonal()[:, None])).sum(dim=1)
