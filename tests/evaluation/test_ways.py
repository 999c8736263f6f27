"""Windows, chunks and their vectors, against runs of the model on one window at a time and loops in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluated_models import VOCABULARY, save_encoder
from posembed.evaluation import ways
from posembed.evaluation.ways import MATCHES, WAYS, Encoder, Index, Reading, new_tokens, slices, tokens_to_read
from together import together
from tolerance import assert_close

CLS, SEP = (2,), (3,)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(save_encoder(tmp_path_factory.mktemp("encoder")).double(), CLS, SEP, "mean")


def some_texts(*sizes: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(5, len(VOCABULARY), (size,), generator=draw) for size in sizes]


def states(encoder: Encoder, ids: Tensor) -> Tensor:
    fed = torch.tensor([[*encoder.before, *ids.tolist(), *encoder.after]])
    with torch.inference_mode():
        return encoder.model(input_ids=fed).last_hidden_state[0]


def read(encoder: Encoder, texts: list[Tensor], reading: Reading) -> list[tuple[list[slice], Tensor]]:
    with torch.inference_mode():
        return [(list(spans), vectors) for spans, vectors in encoder.read(texts, reading)]


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 16, 29])
def test_slices_cover_every_token_and_are_as_long_as_possible(number: int) -> None:
    parts = slices(number, 8)
    covered = torch.zeros(number)
    for part in parts:
        assert part.stop - part.start == min(8, number)
        covered[part] += 1
    assert (covered > 0).all()
    assert len(parts) == -(-number // 8)
    assert sum(new_tokens(parts)) == number


@together("around", [0, 2])
@together("reading", [Reading(40, 40, 40), Reading(50, 12, 12), Reading(9, 30, 5), Reading(64, 16, 16)])
def test_a_smaller_reading_reads_the_same(reading: Reading, around: int) -> None:
    texts = some_texts(3, 37, 20)
    smaller = reading.shortest(37, around)
    assert all(new <= old for new, old in zip(smaller, reading, strict=True))
    for text in texts:
        parts = [slices(min(len(text), each.room(around)), each.window - around) for each in (reading, smaller)]
        assert parts[0] == parts[1]
    windows = len(slices(reading.room(around), reading.window - around))
    assert 0 <= reading.length - reading.room(around) - around * windows <= around
    assert reading.room(around) <= reading._replace(length=reading.length + 1).room(around)


def test_padded_texts_have_the_vectors_of_texts_alone(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = some_texts(1, 30, 7, 30, 12)
    whole = Reading(64, 64, 64)
    alone = [read(encoder, [text], whole)[0][1] for text in texts]
    for most in (4096, 40, 1):
        monkeypatch.setattr(ways, "TOKENS_PER_BATCH", most)
        for (spans, vectors), expected, text in zip(read(encoder, texts, whole), alone, texts, strict=True):
            assert spans == [slice(0, len(text))]
            assert_close(vectors, expected)
            plain = F.normalize(states(encoder, text).mean(dim=0), dim=0)
            assert_close(vectors[0].double(), plain, dtype=torch.float32)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_whole_texts_have_the_vectors_of_every_pooling(encoder: Encoder, pooling: str) -> None:
    texts = some_texts(12, 5)
    with torch.inference_mode():
        found = replace(encoder, pooling=pooling).whole(texts)
    for text, vector in zip(texts, found, strict=True):
        of_text = states(encoder, text)
        expected = {"mean": of_text.mean(0), "cls": of_text[0], "max": of_text.max(0).values}[pooling]
        assert_close(vector.double(), F.normalize(expected, dim=0), dtype=torch.float32)


def test_chunks_are_windows_of_their_own(encoder: Encoder) -> None:
    (text,) = some_texts(23)
    ((spans, vectors),) = read(encoder, [text], Reading(64, 10, 10))
    assert spans == [slice(0, 8), slice(8, 16), slice(15, 23)]
    for span, vector in zip(spans, vectors, strict=True):
        expected = F.normalize(states(encoder, text[span]).mean(dim=0), dim=0)
        assert_close(vector.double(), expected, dtype=torch.float32)


def test_late_chunks_are_pooled_from_the_states_of_one_window(encoder: Encoder) -> None:
    (text,) = some_texts(23)
    ((spans, vectors),) = read(encoder, [text], Reading(64, 64, 10))
    whole = states(encoder, text)  # 1 + 23 + 1 states
    parts = [whole[:9], whole[9:17], whole[16:]]  # the first with [CLS], the last with [SEP]
    expected = torch.stack([F.normalize(part.mean(dim=0), dim=0) for part in parts])
    assert_close(vectors.double(), expected, dtype=torch.float32)
    assert spans == [slice(0, 8), slice(8, 16), slice(15, 23)]
    ((_, one),) = read(encoder, [text], Reading(64, 64, 64))
    ((_, late),) = read(encoder, [text], Reading(64, 64, 25))  # one chunk that is the whole window
    assert torch.equal(one, late)


def test_late_chunks_of_several_windows(encoder: Encoder) -> None:
    (text,) = some_texts(50)
    ((spans, vectors),) = read(encoder, [text], Reading(64, 32, 12))
    parts = [(window, span) for window in slices(50, 30) for span in slices(30, 10)]
    assert spans == [slice(window.start + span.start, window.start + span.stop) for window, span in parts]
    for (window, span), vector in zip(parts, vectors, strict=True):
        of_window = states(encoder, text[window])
        start, stop = 1 + span.start if span.start else 0, 32 if span.stop == 30 else 1 + span.stop
        expected = F.normalize(of_window[start:stop].mean(dim=0), dim=0)
        assert_close(vector.double(), expected, dtype=torch.float32)


def test_equal_windows_are_read_once(encoder: Encoder) -> None:
    first, second = some_texts(20, 8)
    texts = [first, second, first.clone(), torch.cat([first[:8], second])]
    reading = Reading(64, 10, 10)
    seen: list[int] = []
    with torch.inference_mode():
        found = list(encoder.read(texts, reading, seen.append))
    assert sum(seen) == tokens_to_read(texts, reading, around=2) == 3 * 8 + 8
    assert torch.equal(found[0][1], found[2][1])
    assert torch.equal(found[3][1], torch.cat([found[0][1][:1], found[1][1]]))


def chunked(*sizes: int, chunk: int = 8) -> list[tuple[list[slice], Tensor]]:
    draw = torch.Generator().manual_seed(1)
    spans = [slices(size, chunk) for size in sizes]
    return [(each, F.normalize(torch.randn(len(each), 5, generator=draw), dim=1)) for each in spans]


@pytest.mark.parametrize("match", MATCHES)
def test_scores_are_those_of_a_loop(match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "NEIGHBOURHOOD", 12)
    documents = chunked(3, 0, 20, 61)
    queries = F.normalize(torch.randn(4, 5), dim=1)
    scores = Index.of(documents, match).scores(queries)
    assert torch.isneginf(scores[:, 1]).all()  # no tokens
    for column, (spans, vectors) in enumerate(documents):
        if not spans:
            continue
        weights, compared = new_tokens(spans), []
        for i, own in enumerate(spans):
            near = [j for j, each in enumerate(spans) if each.stop > own.start - 12 and each.start < own.stop + 12]
            total = sum(weights[j] for j in near)
            mean = sum(weights[j] / total * vectors[j].double() for j in near)
            compared.append(vectors[i].double() + 0.5 * mean)
        if match == "max":
            compared = list(vectors.double())
        if match == "mean":
            compared = [sum(w * v.double() for w, v in zip(weights, vectors, strict=True)) / sum(weights)]
        for row, query in enumerate(queries.double()):
            best = max(float(query @ each / each.norm()) for each in compared)
            assert_close(scores[row, column].item(), best, dtype=torch.float32)


@pytest.mark.parametrize("match", MATCHES)
def test_a_document_of_one_chunk_has_one_score(match: str) -> None:
    documents = chunked(5, 8)
    queries = F.normalize(torch.randn(3, 5), dim=1)
    expected = torch.cat([queries @ vectors.T for _, vectors in documents], dim=1)
    assert_close(Index.of(documents, match).scores(queries), expected)


def test_every_way_reads_short_texts_whole() -> None:
    for way in WAYS.values():
        for length in (16, 30, 32):
            assert way.reading(length, 64, 32, 32).shortest(30, 2) == Reading(length, length, length).shortest(30, 2)
