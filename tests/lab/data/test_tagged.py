"""Words with labels: files of columns, and entities counted exactly."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from posembed.errors import DataError
from posembed.lab.data.sentences import NAMES, PATTERNS, question_about_facts, tagged_sentence
from posembed.lab.data.tagged import are_iob, entities, load_tagged, read_columns
from together import together

CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
German JJ I-NP B-MISC
call NN I-NP O
. . O O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
"""


def written(tmp_path: Path, text: str, name: str = "a.conll") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def entities_by_definition(tags: tuple[str, ...]) -> set[tuple[str, int, int]]:
    """Every span that is an entity: it starts at a B, or at an I whose word before is of no such type; all its other
    words are I of its type; and the word after it does not continue it."""
    kind = [tag.partition("-")[2] for tag in tags]

    def starts(at: int) -> bool:
        return tags[at][0] == "B" or (tags[at][0] == "I" and (at == 0 or kind[at - 1] != kind[at]))

    return {
        (kind[first], first, last)
        for first, last in itertools.combinations(range(len(tags) + 1), 2)
        if starts(first)
        and all(tags[at] == f"I-{kind[first]}" for at in range(first + 1, last))
        and (last == len(tags) or tags[last] != f"I-{kind[first]}")
    }


def test_entities_are_those_of_their_definition() -> None:
    for length in range(6):
        for tags in itertools.product(("O", "B-X", "I-X", "B-Y", "I-Y"), repeat=length):
            assert entities(tags) == entities_by_definition(tags), tags
    assert entities([None, "B-X", None, "I-X"]) == {("X", 1, 2), ("X", 3, 4)}


def test_which_labels_mark_entities() -> None:
    assert are_iob(["O", "B-PER", "I-PER"])
    for labels in (["O"], ["NN", "VB"], ["O", "S-PER"], ["B-", "O"], ["B-X", "NN"]):
        assert not are_iob(labels)


def test_a_file_of_columns(tmp_path: Path) -> None:
    first, second = read_columns(written(tmp_path, CONLL))
    assert first.words == ("EU", "rejects", "German", "call", ".")
    assert first.tags == ("B-ORG", "O", "B-MISC", "O", "O")
    assert second.tags == ("B-PER", "I-PER")
    assert first.document != second.document  # one -DOCSTART- is no document to split by
    other = read_columns(written(tmp_path, CONLL), 1, 2)
    assert other[1].tags == ("NNP", "NNP")
    tabs = written(
        tmp_path, "# text = New York\n1\tNew York\tPROPN\n2\tis\tVERB\n\n1\tIt\tPRON\n".replace("\n", "\r\n")
    )
    assert [s.words for s in read_columns(tabs, 2, 3)] == [("New York", "is"), ("It",)]
    for end in ("\r", "\r\r\n"):  # lines end as on old Macs, or were converted twice; a tab is among the spaces
        mixed = written(tmp_path, f"a O{end}b\tB-X{end}{end}c O{end}")
        assert [s.words for s in read_columns(mixed)] == [("a", "b"), ("c",)]
    for text in (
        "a O\rb B\r\rc O\r",
        "a O\rb B\r\rc O\r\n",
        "a O\rb B\r\rc O\n",
        "a O\n\rb B\n\r\n\rc O\n\r",
        "a O\nb B\r\nc O\n".replace("\r\n", "\r\r"),
        "a\r\tX\r\tO\nb\r\tY\r\tB\n\nc\r\tX\r\tO\n",
        "a\r\tO\nb\r\tB\n\nc\r\tO\n",
        "a\tO\r\t\nb\tB\r\t\n\r\nc\tO\r\t\n",
    ):  # of paste
        assert [s.words for s in read_columns(written(tmp_path, text))] == [("a", "b"), ("c",)]


def test_documents_stay_together(tmp_path: Path) -> None:
    text = "".join(
        f"-DOCSTART- O\n\n{f'in O{chr(10)}d{i}s1 B-X{chr(10) * 2}in O{chr(10)}d{i}s2 B-X{chr(10) * 2}'}"
        for i in range(9)
    )
    there = load_tagged(str(written(tmp_path, text)))
    assert not {s.document for s in there.train} & {s.document for s in there.held_out}
    assert (len(there.train), len(there.held_out)) == (16, 2)
    assert are_iob(there.labels)


def test_a_file_to_test_on(tmp_path: Path) -> None:
    train = written(tmp_path, "a O\nb B-X\ne O\nf O\n\nc O\nd B-Y\n", "train.txt")
    test = written(tmp_path, "c O\nd B-Y\n\nd B-Z\ne O\n", "test.txt")
    there = load_tagged(str(train), test_data=str(test))
    assert [s.words for s in there.train] == [("a", "b", "e", "f")]
    assert len(there.held_out) == 2
    assert there.labels == ("B-X", "B-Y", "B-Z", "O")
    assert "1 training sentences, 1 more left out because they are held out too" in there.description
    assert "with labels that no training sentence has: B-Y, B-Z" in there.description


@together(
    ("text", "message"),
    [
        ("a O\nb\n", "line 2 of .* has 1 column; expected 2: a word, ..., its label, and a blank line"),
        ("a O\nb O x\n", "line 2 of .* has 3 columns; expected 2"),
        ("word\n", "line 1 of .* has 1 column; expected 2"),
        ("-DOCSTART- O\n\n", "has no sentences"),
        ("a O\n\nb O\n", "all words of a.conll have the label 'O'; expected two labels or more"),
        ("a O\nb B-X\n", "has one document or sentence; expected two or more"),
        ("a 1\nb 2\n\nc 3\nd 4\n", "has 4 different values in 4 words"),
        ("a\t\nb\tO\n", "line 1 of .* has 1 column|line 1 of .* has no label"),
    ],
)
def test_bad_columns(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_tagged(str(written(tmp_path, text)))


def test_bad_numbers_of_columns(tmp_path: Path) -> None:
    data = str(written(tmp_path, CONLL))
    for columns, message in (
        ({"label_column": "5"}, "has no column 5; its lines have 4 columns"),
        ({"text_column": "4"}, "column 4 of .* cannot be both the word and its label"),
        ({"label_column": "ner"}, "--label-column: expected the number of a column, from 1; got 'ner'"),
        ({"text_column": "0"}, "--text-column: expected the number of a column, from 1; got '0'"),
    ):
        with pytest.raises(DataError, match=message):
            load_tagged(data, **columns)
    with pytest.raises(DataError, match="generated sentences have no columns"):
        load_tagged("generated", label_column="2")


def test_generated_sentences_need_order() -> None:
    there = load_tagged("generated")
    assert there.sha256 == load_tagged("generated").sha256
    assert not {s.words for s in there.train} & {s.words for s in there.held_out}
    kinds = {name: set() for name in NAMES}
    for sentence in there.train:
        for kind, first, last in entities(sentence.tags):
            for word in sentence.words[first:last]:
                kinds[word].add(kind)
    assert set(map(frozenset, kinds.values())) == {frozenset({"PER", "ORG", "LOC"})}  # a word alone says nothing
    orders = {tuple(part for part in pattern.split() if part[0] == "{") for pattern in PATTERNS}
    assert len(orders) == len(PATTERNS) or len(orders) > 8


def test_generated_answers_are_in_their_contexts() -> None:
    import random

    draw = random.Random(3)
    for _ in range(200):
        question, context, answer, start = question_about_facts(draw)
        assert context[start:].startswith(answer)
        facts = [fact.split() for fact in context.split(" . ")]
        words = question.split()
        number = (
            ("first", "second", "third").index(words[3]) if words[4] == "thing" else
            next(i for i, fact in enumerate(facts) if fact[fact.index("the") + 1] == words[3])
        )  # fmt: skip
        fact = " ".join(facts[number]).removesuffix(" .")
        giver, _, rest = fact.partition(" gave the ")
        assert answer == (giver if words[1] == "gave" else rest.partition(" to ")[2])
    assert all(pattern.endswith(" .") for pattern in PATTERNS)
    assert tagged_sentence(random.Random(1)) == tagged_sentence(random.Random(1))


@together("between", [" ", "\t", "  "])
@together("end", ["\n", " \n", "\r\n", "\t\n"])
def test_other_white_space_is_part_of_a_word(between: str, end: str, tmp_path: Path) -> None:
    words = ("\u3000", "\u00a0", "a\u00a0b", "c\x85d", "\u2009")
    lines = [f"{word}{between}X{between}O{end}" for word in words]
    (tmp_path / "a.conll").write_bytes("".join([*lines, end, *lines[:2]]).encode())
    assert [s.words for s in read_columns(tmp_path / "a.conll")] == [words, words[:2]]


def test_a_sentence_in_another_unicode_form_is_a_copy(tmp_path: Path) -> None:
    train = written(tmp_path, "\u00e9 O\nb B-X\n\nq O\nr B-X\n")
    data = load_tagged(str(train), test_data=str(written(tmp_path, "e\u0301 O\nb B-X\n", "b.conll")))
    assert [s.words for s in data.train] == [("q", "r")]
    assert "1 more left out" in data.description


@pytest.mark.parametrize(
    ("line", "word", "message"),
    [
        ("# id {i} domain=en\n", "w{i} _ _ B-X", "starts with #; remove these comments"),
        ("# id {i}\tdomain=en\n", "w{i} _ _ B-X", "starts with #; remove these comments"),
        ("#\thttp://{i}\n", "{j}\tw{i}\tB-X\tO", "if line 1 is a comment, remove it"),
        ("", "{j}\tw{i}\tB-X", "only numbers, such as 1; choose the column of the words"),
        ("# sent_id = {i}\n", "{j}\tw{i}\t_\tB-X", "only numbers, such as 1; choose the column of the words"),
    ],
)
def test_comments_and_numbers_are_not_words(line: str, word: str, message: str, tmp_path: Path) -> None:
    sentences = [
        line.format(i=i) + "".join(f"{word.format(i=i, j=j)}\n" for j in range(1, i + 2)) + "\n" for i in range(4)
    ]
    with pytest.raises(DataError, match=message):
        read_columns(written(tmp_path, "".join(sentences)))
