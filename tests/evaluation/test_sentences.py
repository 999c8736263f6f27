"""Retrieval: the oracle is a loop over the texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluated_models import VOCABULARY, save_encoder
from posembed.evaluation.counts import (
    FITS,
    PASSAGES,
    embed_texts,
    encoder,
    passages,
    ranks_of_own,
    retrieval_ranks,
)
from posembed.evaluation.texts import Sample
from tolerance import assert_close


def bag_of_words(ids: Tensor) -> Tensor:
    return F.one_hot(ids, len(VOCABULARY)).float().mean(dim=1)


def test_texts_without_shared_words_are_found_by_every_passage() -> None:
    texts = torch.arange(60).reshape(6, 10)
    ranks = retrieval_ranks(bag_of_words, texts, FITS["whole"](texts, 10), passage=3)
    assert {name: ranks_of.tolist() for name, ranks_of in ranks.items()} == dict.fromkeys(PASSAGES, [1] * 6)


def test_chunked_texts_are_found_and_truncated_ones_are_not() -> None:
    texts = torch.arange(90).reshape(3, 30)
    texts[:, :10] = torch.arange(10)  # all begin alike
    truncated = retrieval_ranks(bag_of_words, texts, FITS["truncated"](texts, 10), passage=4)
    assert [ranks.tolist() for ranks in truncated.values()] == [[3, 3, 3]] * 3
    chunked = retrieval_ranks(bag_of_words, texts, FITS["chunked"](texts, 10), passage=4)
    assert chunked["end"].tolist() == [1, 1, 1]


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
    chunks = [F.normalize(bag_of_words(texts[:, start : start + 10]), dim=1) for start in (0, 10, 20)]
    expected = F.normalize((10 * chunks[0] + 10 * chunks[1] + 5 * chunks[2]) / 25, dim=1)
    assert_close(embed_texts(bag_of_words, FITS["chunked"](texts, 10)), expected)


def test_passages_lie_inside() -> None:
    texts = torch.arange(20)[None]
    assert passages(texts, 0.0, 4).tolist() == [[0, 1, 2, 3]]
    assert passages(texts, 0.5, 4).tolist() == [[8, 9, 10, 11]]
    assert passages(texts, 1.0, 4).tolist() == [[16, 17, 18, 19]]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path, pooling: str) -> None:
    model = save_encoder(tmp_path)
    ids = torch.randint(5, 90, (3, 12))
    with torch.inference_mode():
        vectors = encoder(model, Sample(ids, (2,), (3,)), pooling)(ids)
        for text, vector in zip(ids.tolist(), vectors, strict=True):
            states = model(input_ids=torch.tensor([[2, *text, 3]])).last_hidden_state[0]
            expected = {"mean": states.mean(0), "cls": states[0], "max": states.max(0).values}[pooling]
            assert_close(vector, expected)
