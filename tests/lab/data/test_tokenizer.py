"""No setting of a tokenizer's file changes which text is counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from posembed.errors import ArgumentError, DataError
from posembed.lab import measure
from posembed.lab.data.labelled import Example, Examples
from posembed.lab.data.text import load_corpus
from posembed.lab.data.tokenizer import Loaded
from posembed.lab.runs import train
from posembed.lab.tasks.classification import TextClassification
from posembed.lab.tasks.classification_specs import TextSpec
from posembed.lab.tasks.text_specs import BITS

TEXTS = ["the cat sat on the mat, and the dog\n" * 40, "sat on the log — é 日本 🦜\n" * 30, "the end"]


def byte_pairs() -> Tokenizer:
    """As GPT-2's: pairs of bytes, an end of text that it never writes, nothing around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def template(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )


def random_merges(tokenizer: Tokenizer) -> None:
    tokenizer.model.dropout = 0.5


SETTINGS: dict[str, Callable[[Tokenizer], Any]] = {
    "truncation": lambda tokenizer: tokenizer.enable_truncation(8, stride=2),
    "truncation from the left": lambda tokenizer: tokenizer.enable_truncation(8, direction="left"),
    "padding": lambda tokenizer: tokenizer.enable_padding(length=4000),
    "padding to a multiple": lambda tokenizer: tokenizer.enable_padding(pad_to_multiple_of=64),
    "special tokens around a text": template,
    "offsets without spaces": lambda tokenizer: setattr(
        tokenizer, "post_processor", processors.ByteLevel(trim_offsets=True)
    ),
    "random merges": random_merges,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / "text" / f"{i}.txt").write_text(text, encoding="utf-8")
    byte_pairs().save(str(tmp_path / "plain.json"))
    return tmp_path


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_file_changes_no_count(folder: Path, setting: str) -> None:
    tokenizer = byte_pairs()
    SETTINGS[setting](tokenizer)
    tokenizer.save(str(folder / "set.json"))
    plain, found = (
        load_corpus(str(folder / "text"), tokenizer=str(folder / name)) for name in ("plain.json", "set.json")
    )
    assert torch.equal(found.train, plain.train)
    assert torch.equal(found.held_out, plain.held_out)
    assert found.held_out_bytes is not None
    assert plain.held_out_bytes is not None
    assert torch.equal(found.held_out_bytes, plain.held_out_bytes)
    both = len(found.train) + len(found.held_out)
    assert both > 0.2 * sum(len(text.encode()) for text in TEXTS)


def test_an_end_of_its_own_stands_behind_every_document(folder: Path) -> None:
    corpus = load_corpus(str(folder / "text"), tokenizer=str(folder / "plain.json"))
    end = corpus.vocabulary - 1
    assert Tokenizer.from_file(str(folder / "plain.json")).id_to_token(end) is None
    for ids in (corpus.train, corpus.held_out):
        assert (ids == end).sum() == len(TEXTS)
        assert ids[-1] == end
    assert corpus.train.max() < corpus.vocabulary


def test_byte_pairs_of_the_training_text(folder: Path) -> None:
    corpus = load_corpus(str(folder / "text"), tokenizer="bpe:260")
    assert corpus.vocabulary == 261
    assert (corpus.train == 260).sum() == len(TEXTS)
    assert corpus.held_out_bytes is not None
    assert int(corpus.held_out_bytes.sum()) == len(load_corpus(str(folder / "text")).held_out)
    for number in ("3", "", "-5", "1e3", "9" * 11, "9" * 20):
        with pytest.raises(ArgumentError, match=rf"expected a number above 256 after bpe:.*got 'bpe:{number}'"):
            load_corpus(str(folder / "text"), tokenizer=f"bpe:{number}")


@given(st.text(st.characters(codec="utf-8")))
def test_the_bytes_of_any_text_are_counted_once(text: str) -> None:
    tokenizer = Loaded(PLAIN)
    counts = tokenizer.bytes_of(text)
    assert counts is not None
    (ids,) = tokenizer.ids([text])
    assert len(counts) == len(ids) + 1
    assert counts.sum() == len(text.encode()) + 1
    assert (counts >= 0).all()
    tokens = [tokenizer.tokenizer.decode([i]) for i in ids.tolist()]
    if text.isascii():
        assert counts[:-1].tolist() == [len(token) for token in tokens]


PLAIN = byte_pairs()


def test_bits_per_byte_are_of_the_tokens_that_were_scored() -> None:
    """The first half of the text is easy to write in few tokens, the second is not; one window is scored."""
    held_out = torch.arange(101)
    held_out_bytes = torch.cat((torch.full((50,), 8), torch.full((51,), 2)))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return torch.full((len(ids), ids.size(1) - 1), math.log(2), dtype=torch.float64)

    found = measure.everything(
        loss, held_out, train_length=4, test_lengths=(4, 16), tokens=16, held_out_bytes=held_out_bytes
    )
    assert found[BITS] == {4: pytest.approx(1 / 8), 16: pytest.approx(1 / 8)}


@settings(max_examples=50)
@given(st.integers(2, 40), st.integers(2, 40), st.integers(40, 500), st.integers(1, 9))
def test_a_bit_per_byte_is_a_bit_at_every_length(a: int, b: int, tokens: int, train_length: int) -> None:
    """A model that needs one bit for every byte of every token needs that at lengths that do not divide others."""
    held_out_bytes = torch.randint(1, 20, (1000,), generator=torch.Generator().manual_seed(a * b))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return held_out_bytes[ids[:, 1:]].double() * math.log(2)

    found = measure.everything(
        loss,
        torch.arange(1000),
        train_length=train_length,
        test_lengths=tuple(sorted({a, b})),
        tokens=tokens,
        held_out_bytes=held_out_bytes,
    )
    assert found[BITS] == {length: pytest.approx(1) for length in {a, b}}


def test_text_that_a_tokenizer_loses_has_no_bits_per_byte(folder: Path) -> None:
    tokenizer = byte_pairs()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(folder / "lower.json"))
    assert load_corpus(str(folder / "text"), tokenizer=str(folder / "lower.json")).held_out_bytes is not None
    (folder / "text" / "0.txt").write_text("THE CAT " * 99)
    lost = load_corpus(str(folder / "text"), tokenizer=str(folder / "lower.json"))
    assert lost.held_out_bytes is None
    assert "bits per byte are unknown" in lost.description


def test_gaps_in_the_ids_are_inside_the_vocabulary(folder: Path) -> None:
    file = json.loads((folder / "plain.json").read_text(encoding="utf-8"))
    file["model"]["vocab"]["Ċ"] = 999  # the line's end
    (folder / "gap.json").write_text(json.dumps(file), encoding="utf-8")
    corpus = load_corpus(str(folder / "text"), tokenizer=str(folder / "gap.json"))
    assert corpus.vocabulary == 1001
    assert 999 in corpus.train


def test_a_tokenizer_by_another_path_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link.json").symlink_to(folder / "plain.json")
    monkeypatch.chdir(folder)
    names = [str(folder / "plain.json"), "plain.json", "link.json", "../" + folder.name + "/plain.json"]
    assert len({load_corpus("text", tokenizer=name).sha256 for name in names}) == 1
    assert load_corpus("text").sha256 != load_corpus("text", tokenizer="plain.json").sha256


def only_words(words: list[str]) -> Tokenizer:
    """Has no token for anything but these words, and none for what it does not know."""
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return tokenizer


def test_a_text_without_a_token_is_refused_where_there_is_no_other(folder: Path) -> None:
    only_words(["q"]).save(str(folder / "q.json"))
    with pytest.raises(DataError, match=r"has no text to train on with the tokenizer .*q\.json"):
        load_corpus(str(folder / "text"), tokenizer=str(folder / "q.json"))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_texts_without_a_token_do_not_make_a_run_fail(
    ordered: Examples[Example], text_spec: TextSpec, accelerator: Accelerator, tmp_path: Path, pooling: str
) -> None:
    only_words(list("abc")).save(str(tmp_path / "abc.json"))
    task = TextClassification(ordered, str(tmp_path / "abc.json"))
    assert (task.train.ids == task.vocabulary - 1).any()
    assert task.train.lengths().min() == task.held_out.lengths().min() == 1
    spec = TextSpec(**{**vars(text_spec), "pooling": pooling, "data_sha256": task.sha256})
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.measurements is not None
    assert sum(result.measurements.classes.values()) == len(ordered.held_out)


WITHOUT_UNKNOWN = {
    "unigram": models.Unigram([("a", -1.0), ("b", -2.0)], None, False),
    "word level": models.WordLevel({"a": 0}, "[UNK]"),
    "word piece": models.WordPiece({"a": 0}, unk_token="[UNK]"),
}


@pytest.mark.parametrize("kind", WITHOUT_UNKNOWN)
def test_a_text_that_a_tokenizer_has_no_token_for(kind: str, folder: Path) -> None:
    tokenizer = Tokenizer(WITHOUT_UNKNOWN[kind])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "t.json"))
    with pytest.raises(DataError, match=r"the tokenizer cannot encode the text: .*; use another"):
        load_corpus(str(folder / "text"), tokenizer=str(folder / "t.json"))
