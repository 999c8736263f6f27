from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import torch

from posembed import DataError
from posembed.lab.data.text import Document, load_corpus, split


def decoded(ids: torch.Tensor) -> bytes:
    return bytes(ids.tolist())


def test_the_standard_library_is_there() -> None:
    corpus = load_corpus("stdlib")
    assert len(corpus.train) > 3_000_000
    assert 0.05 < len(corpus.held_out) / (len(corpus.train) + len(corpus.held_out)) < 0.2
    assert corpus.vocabulary == 256
    assert corpus.bytes_per_token == 1.0
    text = decoded(corpus.train) + decoded(corpus.held_out)
    assert b"class OrderedDict" in text
    assert b"import unittest\n\nclass TestCase" not in text
    assert load_corpus("stdlib").sha256 == corpus.sha256


def test_many_documents_are_split_whole() -> None:
    documents = [Document(f"d{i}", b"x" * 100) for i in range(50)]
    train, held_out = split(documents)
    assert len(held_out) == 5
    assert sorted((*train, *held_out), key=lambda d: int(d.name[1:])) == documents
    assert split(documents[::-1]) == (train, held_out)  # by name, not by the order in which they were found


def test_of_a_few_documents_the_end_is_held_out() -> None:
    lines = b"".join(b"line %03d\n" % i for i in range(100))
    train, held_out = split([Document("a", lines), Document("b", b"no line ends here" * 10)])
    assert train[0].text + held_out[0].text == lines
    assert held_out[0].text.startswith(b"line 090")
    assert 0 < len(held_out[1].text) < 40


def test_files_folders_and_separators(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("ä" * 100, encoding="utf-8")
    (tmp_path / "b.md").write_text("b" * 100, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    folder = load_corpus(str(tmp_path))
    files = load_corpus(f"{tmp_path / 'b.md'},{tmp_path / 'deep' / 'a.txt'}")
    assert decoded(folder.train) == decoded(files.train) == b"b" * 90 + b"\0" + "ä".encode() * 90 + b"\0"
    assert folder.sha256 != files.sha256  # the names differ
    assert "2 files" in files.description


def test_the_hash_is_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text("one line\n" * 50)
    before = load_corpus(str(file)).sha256
    file.write_text("one line\n" * 49 + "one Line\n")
    assert load_corpus(str(file)).sha256 != before


def test_a_tokenizer_of_ones_own(tmp_path: Path) -> None:
    text = "the cat sat on the mat and the dog sat on the log\n" * 40
    (tmp_path / "t.txt").write_text(text)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["[UNK]"]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    corpus = load_corpus(str(tmp_path / "t.txt"), tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.vocabulary == tokenizer.get_vocab_size()
    assert corpus.train.max() < corpus.vocabulary
    assert corpus.bytes_per_token > 2
    assert load_corpus(str(tmp_path / "t.txt")).sha256 != corpus.sha256


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    data = tmp_path / "set"
    data.mkdir()
    (data / "train.txt").write_text("".join(f"row {i}\n" for i in range(30)))
    (data / "test.txt").write_text("held out\n")
    corpus = load_corpus(f"hf:{data}")
    assert decoded(corpus.held_out) == b"held out\0"
    assert decoded(corpus.train).count(b"\0") == 30


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty: expected UTF-8 text"),
        (b"  \n\n", "is empty"),
        (b"abc\0def", r"not text \(a zero byte at offset 3\)"),
        (b"caf\xe9", r"not text \(not UTF-8 at offset 3\)"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(contents)
    with pytest.raises(DataError, match=message):
        load_corpus(str(tmp_path / "f"))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder .*nowhere; the data may be \"stdlib\""):
        load_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="holds no text"):
        load_corpus(str(tmp_path))
    (tmp_path / "t.txt").write_text("some text\n" * 9)
    with pytest.raises(DataError, match=r"the tokenizer .*t\.txt cannot be loaded"):
        load_corpus(str(tmp_path / "t.txt"), tokenizer=str(tmp_path / "t.txt"))
