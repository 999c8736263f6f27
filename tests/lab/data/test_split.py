"""What is held out is about a tenth, whole characters, and nowhere in the training text."""

from __future__ import annotations

import os
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.lab.data.documents import Document
from posembed.lab.data.text import DOCUMENTS_TO_SPLIT_BY, Split, load_corpus, same_text, split
from together import together


def sizes(documents: list[Document]) -> tuple[int, int]:
    sides = split(documents)
    return sum(len(d.text) for d in sides.train), sum(len(d.text) for d in sides.held_out)


def test_many_documents_are_split_whole() -> None:
    documents = [Document(f"d{i}", b"x%d" % i * 50) for i in range(100, 150)]
    sides = split(documents)
    assert len(sides.held_out) == 5
    assert sorted((*sides.train, *sides.held_out), key=lambda d: d.name) == documents


WRITTEN_OTHERWISE = {
    "as it is": lambda text: text,
    "spaces that do not break": lambda text: text.replace(" ", "\u00a0"),
    "a byte order mark": lambda text: "\ufeff" + text,
    "line ends": lambda text: text.replace("\n", "\r\n"),
    "white space": lambda text: f"\n\t{text.replace(' ', '  ')}\u2028",
    "accents apart": lambda text: unicodedata.normalize("NFD", text),
}


@together("count", [1, 5, 30, 100])
@together("how", WRITTEN_OTHERWISE)
@together("copies", [0, 1, 9])
def test_copies_do_not_change_what_is_held_out(count: int, how: str, copies: int) -> None:
    """A tenth of the different texts is held out, each once, and none is on both sides however it is written."""
    texts = [f"déjà vu {i}\n" * (5 + i % 7) for i in range(count)]
    once = split([Document(str(i), text.encode()) for i, text in enumerate(texts)])
    written = [WRITTEN_OTHERWISE[how](text).encode() for text in texts]
    copied = [Document(f"{copy}-{i}", text) for copy in range(copies) for i, text in enumerate(written)]
    sides = split([*copied, *(Document(str(i), text.encode()) for i, text in enumerate(texts))])
    wanted, held_out = ({same_text(d.text) for d in side} for side in (once.held_out, sides.held_out))
    assert len(held_out) == len(sides.held_out)
    assert not held_out & {same_text(document.text) for document in sides.train}
    if how == "as it is":  # else sizes differ, and with them what makes up a tenth
        assert held_out == wanted
    total = len({same_text(text.encode()) for text in texts}) if count >= DOCUMENTS_TO_SPLIT_BY else 0
    assert 0.04 * total <= len(held_out) <= max(0.21 * total, count)
    assert len(sides.train) + len(sides.held_out) + sides.left_out == (
        count * (copies + 1) + (count if count < DOCUMENTS_TO_SPLIT_BY else 0)
    )


@settings(max_examples=60)
@given(texts=st.lists(st.text("ab \n", min_size=1, max_size=9), min_size=1, max_size=40), data=st.data())
def test_names_and_order_do_not_matter(texts: list[str], data: st.DataObject) -> None:
    def plain(sides: Split) -> tuple[list[bytes], list[bytes], int]:
        return [d.text for d in sides.train], [d.text for d in sides.held_out], sides.left_out

    shuffled = data.draw(st.permutations(texts))
    one, other = ([Document(str(i), t.encode()) for i, t in enumerate(order)] for order in (texts, shuffled))
    assert plain(split(one)) == plain(split(other))


def test_the_library_is_split_by_the_names_of_its_files() -> None:
    """So that a change to one file, as between two versions of Python, leaves the others on their sides."""
    documents = [Document(f"{i}.py", b"x = %d\n" % i * 50) for i in range(100, 150)]
    held_out = {d.name for d in split(documents, by_name=True).held_out}
    changed = [Document(d.name, d.text.replace(b"x", b"y")) for d in documents]
    assert {d.name for d in split(changed, by_name=True).held_out} == held_out
    assert {d.name for d in split(changed).held_out} != {d.name for d in split(documents).held_out}


def test_of_a_few_documents_the_end_is_held_out() -> None:
    lines = b"".join(b"line %03d\n" % i for i in range(100))
    sides = split([Document("a", lines), Document("b", b"no line ends here" * 10)])
    train, held_out = (sorted(side, key=lambda d: d.name) for side in (sides.train, sides.held_out))
    assert train[0].text + held_out[0].text == lines
    assert held_out[0].text.startswith(b"line 090")
    assert 0 < len(held_out[1].text) < 40


@pytest.mark.parametrize(
    "text",
    [b"Title\n\n" + b"word " * 20_000, "日本語".encode() * 999, b"x" * 1001, "a\nb\nä".encode() * 333],
    ids=["a title and one long line", "no line at all", "one byte too many", "many lines"],
)
def test_a_tenth_to_a_fifth_of_any_text_is_held_out(text: bytes) -> None:
    sides = split([Document("a", text)])
    train, held_out = sides.train, sides.held_out
    assert train[0].text + held_out[0].text == text
    assert 0.099 < len(held_out[0].text) / len(text) < 0.201
    assert train[0].text.decode() + held_out[0].text.decode() == text.decode()


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)


@settings(max_examples=12)
@given(texts=st.lists(st.one_of(TEXTS, TEXTS.map(lambda t: t * 50)), min_size=1, max_size=40))
def test_any_documents_are_split_between_characters_and_nothing_is_lost(texts: list[str]) -> None:
    documents = [Document(f"d{i}", f"{i} {text}".encode()) for i, text in enumerate(texts)]
    sides = split(documents)
    train, held_out = sides.train, sides.held_out
    assert sides.left_out == 0
    whole = {document.name: document.text for document in documents}
    joined = {d.name: d.text for d in train}
    for document in held_out:
        name = document.name.removesuffix(" (end)")
        joined[name] = joined.get(name, b"") + document.text
    assert joined == whole
    for document in (*train, *held_out):
        document.text.decode()
    total = sum(map(len, whole.values()))
    if min(map(len, whole.values())) > 40:
        assert 0.049 * total <= sum(len(d.text) for d in held_out) <= 0.201 * total + 4 * len(documents)


@together("place", range(0, 40, 3))
def test_one_large_document_among_small_ones(place: int) -> None:
    documents = [Document(f"{i}", b"small text %d\n" % i * 10) for i in range(DOCUMENTS_TO_SPLIT_BY + 5)]
    documents.append(Document(f"large {place}", b"a large text\n" * 9000))
    train, held_out = sizes(documents)
    assert 0.09 < held_out / (train + held_out) < 0.21


def test_no_text_is_on_both_sides_under_whatever_name(tmp_path: Path) -> None:
    """Thirty texts, each again as a copy, as a link, and with other line ends."""
    for i in range(30):
        text = f"this is text number {i}\n" * 5
        (tmp_path / f"{i}.txt").write_text(text)
        (tmp_path / f"copy-{i}.txt").write_text(text)
        (tmp_path / f"dos-{i}.txt").write_bytes(text.replace("\n", "\r\n").encode())
        os.symlink(tmp_path / f"{i}.txt", tmp_path / f"link-{i}.txt")
    corpus = load_corpus(str(tmp_path))
    train, held_out = (bytes(ids.tolist()).split(b"\0")[:-1] for ids in (corpus.train, corpus.held_out))
    assert not {same_text(text) for text in train} & {same_text(text) for text in held_out}
    left_out = 120 - len(train) - len(held_out)
    assert left_out >= 9
    assert f"{left_out} documents not trained on, because the same text is held out" in corpus.description


def test_of_a_few_documents_the_same_text_is_read_once() -> None:
    text = b"".join(b"line %d of the text\n" % i for i in range(500))
    once = split([Document("a", text)])
    twice = split([Document("a", text), Document("b", text.replace(b"\n", b"\r\n")), Document("c", b"\n" + text)])
    assert twice == Split(once.train, once.held_out, left_out=2)


def test_lines_that_both_sides_have_are_reported(tmp_path: Path) -> None:
    lines = "".join(f"line {i} of the text, which is long enough to be its own\n" for i in range(100))
    (tmp_path / "a.txt").write_text(lines)
    assert "lines" not in load_corpus(str(tmp_path / "a.txt")).description
    (tmp_path / "b.txt").write_text(lines + "more that makes it another text\n" * 60)
    found = load_corpus(f"{tmp_path / 'a.txt'},{tmp_path / 'b.txt'}").description
    assert "% of the held-out text is in lines that also occur in the training text" in found


def test_splitting_takes_linear_time() -> None:
    """Four times as many documents take four times as long; in quadratic time, sixteen."""

    def seconds(count: int) -> float:
        documents = [Document(str(i), b"a short text %d" % i) for i in range(count)]
        started = time.perf_counter()
        assert split(documents).left_out == 0
        return time.perf_counter() - started

    assert min(seconds(20_000) for _ in range(2)) < 10 * max(seconds(5_000) for _ in range(2))
