"""Passages that find their text: the oracle is a loop over the texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evaluated_models import VOCABULARY
from posembed.evaluation.counts import FITS, Counts
from posembed.evaluation.passages import PASSAGES, embed_texts, passage_counts, passages, ranks_of_own
from posembed.evaluation.ways import Encoder
from tolerance import assert_close


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
