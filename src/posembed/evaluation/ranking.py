"""Rankings and their scores, as trec_eval and pytrec_eval define them.

NDCG is that of Järvelin and Kekäläinen (2002, https://doi.org/10.1145/582415.582418) with linear gains, which BEIR and
MTEB report: a document of grade g at rank r counts g / log2(r + 1), and the sum is divided by that of the ideal order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from posembed.evaluation.counts import Counts

DEPTH = 10
"""The number of documents of a ranking that are scored."""


def top(scores: Tensor) -> list[list[int]]:
    """Returns, for each row of scores (Q, N), the columns of the best documents, best first.

    Among equal scores, the first column is ranked first. trec_eval ranks the last id first, so give it columns in
    descending order of the ids. Documents with a score of minus infinity are not ranked.
    """
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :DEPTH]
    ranked = scores.gather(1, order) > -math.inf
    return [columns[there].tolist() for columns, there in zip(order, ranked, strict=True)]


def gain(grades: Iterable[int]) -> float:
    """Returns the discounted cumulative gain of the grades of a ranking, best first. Grades below 0 count as 0."""
    return math.fsum(max(grade, 0) / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))


def ndcg(ranked: Sequence[str], judged: Mapping[str, int], depth: int = DEPTH) -> float:
    """Returns the normalized discounted cumulative gain at a depth, from 0 to 1.

    ranked: the ids of documents, best first. judged: the grade of each judged document; other documents have grade 0.
    Judged documents count in the ideal order even if they could not be found. Without a relevant document, returns 0.

    >>> round(ndcg(["a", "b", "c"], {"b": 1}), 3)
    0.631
    """
    ideal = gain(sorted(judged.values(), reverse=True)[:depth])
    return gain(judged.get(name, 0) for name in ranked[:depth]) / ideal if ideal else 0.0


def recall(ranked: Sequence[str], judged: Mapping[str, int], depth: int) -> float:
    """Returns the share of the relevant documents (grade 1 or more) that are among the first ``depth``; 0 if there are
    none."""
    relevant = {name for name, grade in judged.items() if grade > 0}
    return len(relevant.intersection(ranked[:depth])) / len(relevant) if relevant else 0.0


def ranking_values(ranked: Sequence[str], judged: Mapping[str, int]) -> dict[str, float]:
    """Returns every reported value of one query's ranking, by name."""
    return {
        f"NDCG@{DEPTH}": ndcg(ranked, judged),
        "recall@1": recall(ranked, judged, 1),
        f"recall@{DEPTH}": recall(ranked, judged, DEPTH),
    }


RANKING_VALUES = tuple(ranking_values([], {}))
"""The names of the values."""


def values_of(scores: Tensor, names: Sequence[str], judged: Iterable[Mapping[str, int]]) -> Iterator[dict[str, float]]:
    """Yields the values of each query's ranking. scores: (Q, N). names: the ids of the N documents, in descending
    order. judged: the judgements of each query."""
    for columns, of_query in zip(top(scores), judged, strict=True):
        yield ranking_values([names[column] for column in columns], of_query)


def query_counts(values: Iterable[Mapping[str, float]], match: str, *, finite: bool) -> Counts:
    """Returns the values of all queries, as counts of weight 1 whose names begin with ``match``. finite: whether all
    scores are finite; otherwise, every value is NaN."""
    known = list(values)
    return {
        f"{match} {name}": (
            torch.tensor([each[name] if finite else math.nan for each in known], dtype=torch.float64),
            torch.ones(len(known)),
        )
        for name in RANKING_VALUES
    }


def best_of_each(scores: Tensor, owners: Tensor, documents: int) -> Tensor:
    """Returns the best score of each document (Q, N), from the scores of its vectors (Q, M).

    owners: int64 (M,), the document of each vector. A document without vectors has a score of minus infinity.
    """
    best = torch.full((len(scores), documents), -math.inf, dtype=scores.dtype)
    return best.scatter_reduce_(1, owners.expand_as(scores), scores, "amax")
