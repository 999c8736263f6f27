"""Rankings against a plain oracle in float64: one loop over the documents, with trec_eval's order of equal scores."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evaluated_models import VOCABULARY
from posembed.evaluation.counts import FITS, Counts
from posembed.evaluation.passages import PASSAGES, embed_texts, passage_counts, passages, ranks_of_own
from posembed.evaluation.ranking import best_of_each, ndcg, ranking_values, recall, top, values_of
from posembed.evaluation.ways import Encoder
from together import together
from tolerance import assert_close


def order_of(scores: dict[str, float]) -> list[str]:
    """By falling score; among equal scores, the last id first."""
    return sorted(sorted(scores, reverse=True), key=lambda name: -scores[name])


def oracle(ranked: list[str], judged: dict[str, int], depth: int) -> tuple[float, float]:
    gained = ideal = 0.0
    for place in range(min(depth, len(ranked))):
        gained += max(judged.get(ranked[place], 0), 0) / math.log(place + 2, 2)
    for place, grade in enumerate(sorted(judged.values())[::-1][:depth]):
        ideal += max(grade, 0) / math.log(place + 2, 2)
    relevant = [name for name in judged if judged[name] >= 1]
    hits = sum(name in ranked[:depth] for name in relevant)
    return gained / ideal if ideal else 0.0, hits / len(relevant) if relevant else 0.0


@together("seed", range(8))
def test_values_are_those_of_the_oracle(seed: int) -> None:
    draw = random.Random(seed)
    names = sorted({f"d{draw.randrange(99)}" for _ in range(draw.choice([1, 4, 30]))}, reverse=True)
    for _ in range(20):
        # Few different scores, so that many are equal; grades from -1 to 3, also of a document outside the corpus.
        scores = {name: draw.choice([0.1, 0.25, 0.5, 0.9]) for name in names}
        judged = {name: draw.choice([-1, 0, 0, 1, 2, 3]) for name in draw.sample(names, k=draw.randint(0, len(names)))}
        judged["elsewhere"] = draw.choice([0, 1, 2])
        (columns,) = top(torch.tensor([[scores[name] for name in names]]))
        ranked = [names[column] for column in columns]
        assert ranked == order_of(scores)[:10]
        for depth in (1, 3, 10):
            expected = oracle(ranked, judged, depth)
            assert_close((ndcg(ranked, judged, depth), recall(ranked, judged, depth)), expected)
        (values,) = values_of(torch.tensor([[scores[name] for name in names]]), names, [judged])
        assert values == ranking_values(ranked, judged)
        assert values["NDCG@10"] == ndcg(ranked, judged)


def test_the_ideal_order_has_1_and_no_other_order_has_more() -> None:
    judged = {"a": 3, "b": 1, "c": 2, "d": 0}
    assert ndcg(["a", "c", "b", "d"], judged) == 1
    assert all(ndcg(random.Random(i).sample("abcd", k=4), judged) <= 1 for i in range(20))
    assert ranking_values([], judged) == dict.fromkeys(ranking_values([], judged), 0)
    assert ranking_values(["a"], {"a": 0})["NDCG@10"] == 0


def test_documents_without_a_score_are_not_ranked() -> None:
    scores = torch.tensor([[-math.inf, 0.5, -math.inf, -1.0], [-math.inf] * 4])
    assert top(scores) == [[1, 3], []]


def test_the_score_of_a_document_is_that_of_its_best_vector() -> None:
    scores: Tensor = torch.randn(3, 7)
    owners = torch.tensor([0, 0, 0, 2, 4, 4, 4])
    best = best_of_each(scores, owners, 5)
    for document in range(5):
        own = scores[:, owners == document]
        expected = own.amax(dim=1) if own.shape[1] else torch.full((3,), -math.inf)
        assert torch.equal(best[:, document], expected)


# Passages that find their text: the oracle is a loop over the texts.


class Words(nn.Module):
    """A model whose states are its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.scale * F.one_hot(input_ids, len(VOCABULARY)))


BAG_OF_WORDS = Encoder(Words(), (), (), "mean")


def counted(texts: Tensor, fit: str, *, passage: int) -> Counts:
    with torch.no_grad():
        return passage_counts(BAG_OF_WORDS, texts, FITS[fit](texts, 10), passage=passage, tick=lambda tokens: None)


def test_texts_without_shared_words_are_found_by_every_passage() -> None:
    for name, (totals, weights) in counted(torch.arange(60).reshape(6, 10), "whole", passage=3).items():
        assert totals.tolist() == weights.tolist() == [1 if "from" in name else len(PASSAGES)] * 6


def test_chunked_texts_are_found_and_truncated_ones_are_not() -> None:
    texts = torch.arange(90).reshape(3, 30)
    texts[:, :10] = torch.arange(10)  # all begin alike
    found = counted(texts, "truncated", passage=4)
    assert found["recall at 1"][0].tolist() == [0] * 3
    assert_close(found["mean reciprocal rank"][0], torch.ones(3).double())  # a third for each of three passages
    assert counted(texts, "chunked", passage=4)["recall at 1, passages from the end"][0].tolist() == [1] * 3


def test_ranks_against_a_loop() -> None:
    queries, answers = torch.randn(20, 5), torch.randn(20, 5)
    answers[7] = answers[4]  # a tie, which counts against both
    ranks = ranks_of_own(queries, answers)
    for i in range(20):
        scores = (queries[i] @ answers.T).tolist()
        assert ranks[i] == sum(score >= scores[i] for score in scores)
    queries[3] = float("nan")
    assert ranks_of_own(queries, answers)[3] == 20


def test_a_chunked_text_is_the_mean_of_its_chunks_by_their_tokens() -> None:
    texts = torch.randint(0, 90, (4, 25))
    words = F.one_hot(texts, len(VOCABULARY)).float()
    chunks = [F.normalize(words[:, start : start + 10].mean(dim=1), dim=1) for start in (0, 10, 20)]
    expected = F.normalize((10 * chunks[0] + 10 * chunks[1] + 5 * chunks[2]) / 25, dim=1)
    with torch.no_grad():
        assert_close(embed_texts(BAG_OF_WORDS, FITS["chunked"](texts, 10)), expected)


def test_passages_lie_inside() -> None:
    texts = torch.arange(20)[None]
    assert passages(texts, 0.0, 4).tolist() == [[0, 1, 2, 3]]
    assert passages(texts, 0.5, 4).tolist() == [[8, 9, 10, 11]]
    assert passages(texts, 1.0, 4).tolist() == [[16, 17, 18, 19]]
