"""Long documents, split by document, and their windows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from evaluated_models import WORDS, save_tokenizer
from posembed.errors import DataError
from posembed.tuning.apart import COPY, MOST, RUN, Candidates, runs, set_apart
from posembed.tuning.texts import MOST_WINDOWS, Document, Texts, pieces_of_text, read_texts, split_documents


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, specials=True)
    return AutoTokenizer.from_pretrained(folder)


def byte_level_tokenizer() -> Any:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built = Tokenizer(models.BPE({letter: number for number, letter in enumerate(sorted(alphabet))}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=built)


def documents(number: int, words: int) -> list[str]:
    draw = random.Random(number)
    return [" ".join(draw.choices(WORDS, k=words + index % 7)) for index in range(number)]


def parts(texts: Texts) -> tuple[set[str], set[str]]:
    return {document.text for document in texts.training}, {document.text for document in texts.held_out}


HOW: dict[str, Any] = {"width": 30, "around": 2, "fewest": 5, "held_out": 0.2, "seed": 0}


def test_every_long_document_is_on_one_side(tokenizer: Any) -> None:
    long, short = documents(40, 50), documents(9, 12)
    texts = split_documents([*long, *short, *long[:5]], tokenizer, **HOW)
    training, held_out = parts(texts)
    assert not training & held_out
    assert training | held_out == set(long)
    assert (len(held_out), set(texts.short)) == (8, set(short))
    assert parts(split_documents([*short, *reversed(long)], tokenizer, **HOW)) == (training, held_out)
    assert parts(split_documents(long, tokenizer, **{**HOW, "seed": 1}))[1] != held_out
    assert len(parts(split_documents(long, tokenizer, **{**HOW, "held_out": 0}))[1]) == 5


def test_documents_with_equal_tokens_count_once(tokenizer: Any) -> None:
    long, short = documents(20, 50), documents(9, 12)
    copies = [text.replace(" ", spaces) for text in (*long, *short) for spaces in (" ", "  ", "\n", " \t")]
    texts = split_documents(copies, tokenizer, **HOW)
    ids = [tuple(document.ids.tolist()) for document in (*texts.training, *texts.held_out)]
    assert (len(ids), len(set(ids)), len(texts.short)) == (20, 20, 9)
    assert split_documents(copies[::-1], tokenizer, **HOW).sha256 == texts.sha256


def changed(text: str, seed: int) -> str:
    """Returns a text in which one word of twenty is another."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) if draw.random() < 0.05 else word for word in text.split())


@pytest.mark.parametrize(
    "copied",
    [
        changed,
        lambda text, seed: text.replace(" ", "  "),
        lambda text, seed: f"{text.upper()} the end",
        lambda text, seed: f"{documents(1, 9)[0]} {text}",
        lambda text, seed: " ".join(text.split()[:60]),
        lambda text, seed: f"{text} {' '.join(random.Random(seed).choices(WORDS, k=200))}",
    ],
    ids=["changed words", "double spaces", "capitals", "a new start", "a part", "a longer text"],
)
def test_near_copies_of_held_out_documents_are_left_out(tokenizer: Any, copied: Callable[[str, int], str]) -> None:
    originals, others = documents(10, 100), documents(30, 100)
    copies = {copied(text, number): text for number, text in enumerate(originals)}
    every = [*originals, *copies, *others]
    different = len({tuple(tokenizer(text)["input_ids"]) for text in every})
    for seed in range(5):
        texts = split_documents(every, tokenizer, **{**HOW, "seed": seed})
        training, held_out = ({copies.get(text, text) for text in part} for part in parts(texts))
        assert not training & held_out
        assert len(held_out) == len(texts.held_out) >= HOW["fewest"]
        assert len(texts.held_out) + texts.alike >= round(0.2 * different)
        assert len(texts.training) + len(texts.held_out) + texts.alike == different
        (note,) = texts.notes or ("0.",)
        assert f"{texts.alike}." in note


@pytest.mark.parametrize("spaces", ["  ", "\N{NO-BREAK SPACE}", "\n\n"])
def test_spaces_that_are_tokens_make_no_other_document(spaces: str) -> None:
    """With byte-level BPE, two spaces are other tokens than one."""
    tokenizer = byte_level_tokenizer()
    originals = documents(30, 60)
    copies = {text.replace(" ", spaces): text for text in originals}
    texts = split_documents([*originals, *copies], tokenizer, **HOW)
    training, held_out = ({copies.get(text, text) for text in part} for part in parts(texts))
    assert not training & held_out
    assert len(held_out) >= HOW["fewest"]


@pytest.mark.parametrize("title", ["", "A title. "])
def test_documents_that_are_mostly_a_query_are_not_trained_on(title: str, tokenizer: Any) -> None:
    long = documents(20, 100)
    queries = [*long[:4], " ".join(long[5].split()[:20])]
    texts = split_documents(
        [f"{title}{text}" for text in long], tokenizer, **{**HOW, "held_out": None}, queries=queries
    )
    assert {document.text.removeprefix(title) for document in texts.training} == set(long[4:])
    assert texts.notes == (
        (f"Documents that consist mostly of a query and are left out: {4 if title else 0}.",) if title else ()
    )


def test_parts_of_held_out_documents_are_not_searched(tokenizer: Any) -> None:
    long, short = documents(20, 100), documents(9, 12)
    pieces = {" ".join(text.split()[50:75]): text for text in long}
    texts = split_documents([*long, *pieces, *short], tokenizer, **HOW)
    held_out = {document.text for document in texts.held_out}
    assert {pieces[text] for text in texts.short if text in pieces} == set(long) - held_out
    assert set(short) <= set(texts.short)


def test_too_few_different_documents_are_refused(tokenizer: Any) -> None:
    copies = [changed(text, seed) for text in documents(6, 100) for seed in range(4)]
    with pytest.raises(DataError, match=r"at least 10 documents of 32 tokens.* 24 of 24 .* \d+ are near copies"):
        split_documents(copies, tokenizer, **HOW)


def test_windows_cover_the_training_documents(tokenizer: Any) -> None:
    texts = split_documents(documents(12, 75), tokenizer, **HOW)
    for number, document in enumerate(texts.training):
        windows = [window for window in texts.windows if window.document == number]
        covered = {window.start + place for window in windows for place in range(30)}
        assert covered == set(range(len(document.ids)))
        assert all(torch.equal(window.ids, document.ids[window.start : window.start + 30]) for window in windows)
        assert all(len(window.ids) == 30 for window in windows)


def test_very_many_windows_are_chosen_evenly() -> None:
    ids = torch.arange(10 * MOST_WINDOWS)
    texts = Texts((Document("", ids),), (), (), 4)
    starts = [window.start for window in texts.windows]
    assert len(starts) == MOST_WINDOWS == len(set(starts))
    assert starts[-1] > 0.99 * len(ids)
    assert 0 not in [later - earlier for earlier, later in itertools.pairwise(starts)]


def test_too_few_documents_are_refused(tokenizer: Any) -> None:
    with pytest.raises(
        DataError, match=r"at least 10 documents of 32 tokens, 5 to train on and 5 .* 9 of 12 documents"
    ):
        split_documents([*documents(9, 40), *documents(3, 20)], tokenizer, **HOW)
    with pytest.raises(DataError, match="the longest has 28; give more text or a smaller length"):
        split_documents(documents(7, 20), tokenizer, **HOW)
    with pytest.raises(DataError, match="does not know most of this text"):
        split_documents([f"a{number} " * 40 for number in range(12)], tokenizer, **HOW)


def test_pieces_of_text_have_the_tokens_of_their_spans(tokenizer: Any) -> None:
    text = "w3 w5  w7\nw9 w11"
    assert pieces_of_text(tokenizer, text, [slice(1, 3), slice(0, 5), slice(2, 2)]) == ["w5  w7", text, ""]
    slow = type(
        "Slow", (), {"is_fast": False, "decode": tokenizer.decode, "__call__": lambda self, *a, **b: tokenizer(*a, **b)}
    )()
    assert pieces_of_text(slow, text, [slice(1, 3)]) == ["w5 w7"]


def test_paths_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo")
    (tmp_path / "b").write_text("three")
    assert read_texts([tmp_path / "b", tmp_path / "a"]) == ["three", "one", "two"]
    assert read_texts(str(tmp_path)) == ["one\n\ntwo", "three"]


# What is measured on is never trained on, as a copy with a few changes either.


texts = st.lists(st.text("aBb \u00e4\U0001f600\ud800", max_size=3 * RUN), min_size=1, max_size=6)


def runs_by_definition(text: str) -> set[str]:
    plain = "".join(text.casefold().split())
    return {plain[at : at + RUN] for at in range(len(plain) - RUN + 1)}


def copies_by_definition(one: str, other: str) -> bool:
    sides = [runs_by_definition(text) for text in (one, other)]
    common = len(sides[0] & sides[1])
    return common > 0 and common >= COPY * min(map(len, sides))


@given(texts)
def test_near_copies_share_a_quarter_of_the_runs_of_the_shorter_text(found: list[str]) -> None:
    found += [text + found[0] for text in found]
    candidates = Candidates([runs(each) for each in found])
    for text in found:
        expected = [copies_by_definition(text, other) for other in found]
        assert candidates.copied_by(runs(text)).tolist() == expected
        held = runs_by_definition(text)
        most = any(len(held & runs_by_definition(other)) > MOST * len(held) for other in found[:2])
        assert Candidates([runs(each) for each in found[:2]]).make_up(runs(text)) == most


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4), st.integers(0, 2**32))
def test_nothing_that_is_trained_on_is_like_what_is_measured_on(
    total: int, number: int, fewest: int, seed: int
) -> None:
    pairs = torch.rand(total, total, generator=torch.Generator().manual_seed(seed)) < 0.2
    alike = pairs | pairs.T
    measured, trained = set_apart(total, number, fewest, lambda at: alike[at])
    assert not set(measured) & set(trained)
    assert not alike[measured][:, [*trained]].any()
    assert not alike[measured][:, measured].triu(diagonal=1).any()
    left_out = set(range(total)) - {*measured, *trained}
    assert all(alike[measured, each].any() for each in left_out)
    if trained:
        assert len(measured) >= fewest
        assert len(measured) + len(left_out) >= number
