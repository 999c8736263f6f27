"""Labelled texts: what is read, how it is split, and what is refused before anything trains."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from posembed.errors import DataError
from posembed.lab.data.labelled import HELD_OUT_SHARE, Example, labelled, load_labelled, pieces, split_by_document
from together import together

ROWS = [(f"text number {i}, with a comma", ("spam", "ham")[i % 2]) for i in range(40)]


def csv_of(rows: list[tuple[str, str]], head: str = "text,label") -> str:
    return head + "\n" + "".join(f'"{text}",{label}\n' for text, label in rows)


def written(tmp_path: Path, name: str, contents: str) -> str:
    (tmp_path / name).write_text(contents, encoding="utf-8")
    return str(tmp_path / name)


def all_of(data: str, **columns: str) -> set[tuple[str, str]]:
    there = load_labelled(data, **columns)
    return {(example.text, example.label) for example in (*there.train, *there.held_out)}


def test_the_same_rows_from_every_kind_of_file(tmp_path: Path) -> None:
    tabs = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS)
    lines = "".join(json.dumps({"id": i, "text": t, "label": la}) + "\n" for i, (t, la) in enumerate(ROWS))
    for name, contents in (("a.csv", csv_of(ROWS)), ("a.tsv", tabs), ("a.jsonl", lines)):
        assert all_of(written(tmp_path, name, contents)) == set(ROWS), name


def test_quotes_are_quotes_in_csv_and_characters_in_tsv(tmp_path: Path) -> None:
    rows = 'Sentence,Class\n"two\nlines",0\n"a ""b""",1\nc,0\nd,1\n'
    assert all_of(written(tmp_path, "a.csv", rows)) == {("two\nlines", "0"), ('a "b"', "1"), ("c", "0"), ("d", "1")}
    rows = 'sentence\tlabel\n" open\tx\nb\ty\nc\tx\nd\ty\n'
    assert ('" open', "x") in all_of(written(tmp_path, "a.tsv", rows))


def test_columns_by_name_and_pairs_of_texts(tmp_path: Path) -> None:
    head = "premise,hypothesis,answer\n"
    data = written(tmp_path, "a.csv", head + "".join(f"p{i},h{i},{i % 2}\n" for i in range(8)))
    read = all_of(data, text_column="premise,hypothesis", label_column="answer")
    assert ("p3\nh3", "1") in read
    with pytest.raises(DataError, match=r"which column of a\.csv holds the text\? Name it with --text-column; it has"):
        load_labelled(data)
    with pytest.raises(DataError, match=r"a\.csv has no column named 'label'; it has premise, hypothesis, answer"):
        load_labelled(data, text_column="premise", label_column="label")
    two = written(tmp_path, "b.csv", "text,review,label\na,b,c\n")
    with pytest.raises(DataError, match="several columns could hold it: text, review"):
        load_labelled(two)


def by_label(example: Example) -> str:
    return example.label


def test_a_document_stands_on_one_side_and_every_class_on_both() -> None:
    examples = [Example(f"{d} {piece}", "ab"[d % 2], f"d{d}") for d in range(30) for piece in range(1 + (d % 7))] + [
        Example("alone", "c", "c1"),
        Example("alone too", "c", "c2"),
    ]
    train, held_out = split_by_document(examples, by_label)
    assert not {e.document for e in train} & {e.document for e in held_out}
    assert sorted(map(str, train + held_out)) == sorted(map(str, examples))
    assert {e.label for e in train} == {e.label for e in held_out} == {"a", "b", "c"}
    counts, total = Counter(e.label for e in held_out), Counter(e.label for e in examples)
    for label in "ab":
        assert counts[label] <= HELD_OUT_SHARE * total[label]
        assert counts[label] >= HELD_OUT_SHARE * total[label] - 7
    assert split_by_document(list(examples), by_label) == (train, held_out)


def test_the_same_text_twice_does_not_leak(tmp_path: Path) -> None:
    there = load_labelled(written(tmp_path, "a.csv", csv_of(ROWS * 3)))
    assert not {e.text for e in there.train} & {e.text for e in there.held_out}
    assert len(there.train) + len(there.held_out) == 120


def test_white_space_does_not_make_another_text(tmp_path: Path) -> None:
    spaced = [(f" {text.replace(' ', '  ')}\n", label) for text, label in ROWS]
    there = load_labelled(written(tmp_path, "a.csv", csv_of([*ROWS, *spaced])))
    assert not {" ".join(e.text.split()) for e in there.train} & {" ".join(e.text.split()) for e in there.held_out}
    assert len(there.train) + len(there.held_out) == 80


def test_a_class_that_shares_its_texts_with_another_is_on_both_sides_or_refused() -> None:
    refused = 0
    for n in range(30):
        twice = [Example(f"{n} {i}", label, f"{n} {i}") for i in (1, 2) for label in ("ham", "eggs")]
        examples = [*(Example(t, label, t) for t, label in ROWS), *twice]
        if len({"eggs" in {e.label for e in side} for side in split_by_document(examples, by_label)}) > 1:
            with pytest.raises(DataError, match="set has no held-out example of 'eggs'"):
                labelled(examples, None, name="set")
            refused += 1
        else:
            there = labelled(examples, None, name="set")
            assert {e.label for e in there.train} == {e.label for e in there.held_out} == {"ham", "spam", "eggs"}
    assert 0 < refused < 30


def test_rows_without_a_text_are_reported(tmp_path: Path) -> None:
    there = load_labelled(written(tmp_path, "a.csv", csv_of([*ROWS, (" ", "ham"), ("", "spam")])))
    assert "2 without a text skipped" in there.description


def test_a_split_that_there_is_stays_and_its_leaks_go() -> None:
    train = [Example(t, label, t) for t, label in ROWS]
    held_out = [Example(f"new {i}", ("spam", "ham")[i % 2], f"new {i}") for i in range(6)]
    there = labelled([*train, held_out[0]], held_out, name="set")
    assert there.train == tuple(train)
    assert there.held_out == tuple(held_out)
    assert "1 more left out because they are held out too" in there.description
    other = [Example("x", "eggs", "x"), Example("y", "eggs", "y")]
    with pytest.raises(DataError, match="set has no training example of 'eggs'"):
        labelled(train, [*held_out, *other], name="set")


def test_the_hash_depends_on_the_split() -> None:
    examples = [Example(f"text {i}", "ab"[i % 2], f"text {i}") for i in range(12)]
    assert len({labelled(examples[:at], examples[at:], name="x").sha256 for at in (4, 6, 8)}) == 3


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for part, count in (("train", 30), ("validation", 10)):
        rows = [{"sentence": f"{part} {i}", "label": ["no", "yes"][i % 2]} for i in range(count)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.disable_progress_bars()
    there = load_labelled(f"hf:{tmp_path}")
    assert (len(there.train), len(there.held_out), there.labels) == (30, 10, ("no", "yes"))
    assert "its own train and validation splits" in there.description


def test_the_standard_library() -> None:
    there = load_labelled("stdlib")
    assert {"asyncio", "email"} <= set(there.labels)  # distributions leave others out
    files = [{e.document for e in side} for side in (there.train, there.held_out)]
    assert not files[0] & files[1]
    for example in there.held_out[:200]:
        assert example.document.startswith(f"{example.label}/")
    with pytest.raises(DataError, match="the standard library has no columns"):
        load_labelled("stdlib", text_column="text")


def test_pieces_are_whole_lines() -> None:
    text = "ab\n" * 5 + "\n\n" + "x" * 20 + "\nend"
    cut = pieces(text, 8)
    assert "".join(cut) == text
    assert all(len(piece) <= 8 or piece.count("\n") == 1 for piece in cut)
    assert pieces("\n \n", 8) == []


@together(
    ("contents", "message"),
    [
        (csv_of(ROWS, "text,kind"), "which column of a.csv holds the label"),
        ("text,label\n", "has no rows"),
        (csv_of([*ROWS, ("one of its kind", "eggs")]), "classes of a.csv with a single example: 1, such as 'eggs'"),
        (csv_of([*ROWS, ("more", " ")]), r"row 42 of a.csv has no label: column 'label' holds ' '; expected a name"),
        (csv_of([(t, f"0.{i}1") for i, (t, _) in enumerate(ROWS)]), "column 'label' of a.csv holds numbers such as"),
        (
            csv_of([(t, f"title {i}") for i, (t, _) in enumerate(ROWS)]),
            r"has 40 different values in 40 texts, such as 'title 0': these identify texts, not classes",
        ),
        (csv_of([(t, "ham") for t, _ in ROWS]), "all texts of a.csv have the column 'label' 'ham'; expected two"),
        (csv_of([("", "ham"), ("  ", "spam")]), "has no example with text"),
        ('text,label\n"a,x\n', "line 2 of .*a.csv cannot be read: unexpected end of data"),
        ("text,label\na,x\nb\n", "line 3 of .*a.csv does not have the 2 columns"),
        ("text,label\na,x\nb,y,z\n", "line 3 of .*a.csv does not have the 2 columns"),
    ],
)
def test_bad_tables(tmp_path: Path, contents: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_labelled(written(tmp_path, "a.csv", contents))


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2 of .*a\.jsonl is not JSON"):
        load_labelled(written(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n{"text": \n'))
    with pytest.raises(DataError, match=r"row 1 of a\.jsonl is not text: it holds half of a UTF-16 pair"):
        load_labelled(written(tmp_path, "a.jsonl", '{"text": "a \\ud83d", "label": 1}\n'))
    with pytest.raises(DataError, match=r"line 1 of .*a\.jsonl is not a JSON object"):
        load_labelled(written(tmp_path, "a.jsonl", "[1, 2]\n"))
    with pytest.raises(DataError, match=r"row 1 of a\.jsonl has no label: column 'label' holds \['x'\]"):
        load_labelled(written(tmp_path, "a.jsonl", '{"text": "a", "label": ["x"]}\n'))
    with pytest.raises(DataError, match=r"should end in \.csv, \.tsv or \.jsonl"):
        load_labelled(written(tmp_path, "a.parquet", ""))
    with pytest.raises(DataError, match=r"no file or folder .*none\.csv"):
        load_labelled(str(tmp_path / "none.csv"))
    (tmp_path / "latin.csv").write_bytes(b"text,label\ncaf\xe9,x\n")
    with pytest.raises(DataError, match=r"latin\.csv is not UTF-8 text: an invalid byte at offset 14"):
        load_labelled(str(tmp_path / "latin.csv"))


REFUSED = {
    "a text that is a number": ({"text": 0, "label": "a"}, "has no text: column 'text' holds 0; expected"),
    "a text that is false": ({"text": False, "label": "a"}, "has no text: column 'text' holds False"),
    "a text that is a list": ({"text": ["a"], "label": "a"}, "has no text: column 'text' holds"),
    "a text that is an object": ({"text": {"a": 1}, "label": "a"}, "has no text: column 'text' holds"),
    "half a character in a text": ({"text": "\ud800", "label": "a"}, "half of a UTF-16 pair"),
    "half a character in a label": ({"text": "t", "label": "\ud800"}, "half of a UTF-16 pair"),
    "no label": ({"text": "t"}, "has no label"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_are_refused(what: str, tmp_path: Path) -> None:
    row, message = REFUSED[what]
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(20)]
    data = written(tmp_path, "a.jsonl", "".join(json.dumps(one) + "\n" for one in (*rows, row)))
    with pytest.raises(DataError, match=f"row 21 of a.jsonl .*{message}|row 21 of a.jsonl {message}"):
        load_labelled(data)


def test_a_row_that_is_nested_too_deep(tmp_path: Path) -> None:
    row = '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(DataError, match=r"line 1 of .* is not JSON"):
        load_labelled(written(tmp_path, "a.jsonl", row))


def test_names_that_python_reads_as_numbers_are_names(tmp_path: Path) -> None:
    for label in ("nan", "inf", "9" * 400):  # nan is a language
        rows = "".join(f"text {i},{(label, 'eng')[i % 2]}\n" for i in range(40))
        assert set(load_labelled(written(tmp_path, "a.csv", f"text,label\n{rows}")).labels) == {label, "eng"}


def test_a_label_that_is_no_number_is_missing(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"text": f"text {i}", "label": (0.0, 1.0, float("nan"))[i % 3]}) + "\n" for i in range(40)
    )
    with pytest.raises(DataError, match="has no label: column 'label' holds nan"):
        load_labelled(written(tmp_path, "a.jsonl", rows))
    for labels in ("0.0 1.0 nan", "0 1 <NA>", "+1 -1 NaN", "1e0 2. N/A", "true FALSE n/a"):
        table = "".join(f"text {i},{labels.split()[i % 3]}\n" for i in range(40))
        with pytest.raises(DataError, match=f"holds numbers and {labels.split()[2]}, which stands for a missing label"):
            load_labelled(written(tmp_path, "a.csv", f"text,label\n{table}"))


def test_a_class_has_one_name_however_its_number_is_written(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": (1, 1.0, 2, "2.0", "1")[i % 5]} for i in range(40)]
    there = load_labelled(written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert there.labels == ("1", "2")


@pytest.mark.parametrize("wanted", ["label", "text,label", "label,text"])
def test_the_label_is_no_text(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'label' of a\.csv cannot be both the label and in the text"):
        load_labelled(written(tmp_path, "a.csv", csv_of(ROWS)), text_column=wanted)


@pytest.mark.parametrize("head", ["text,text,label", "text,label,label"])
def test_two_columns_of_a_name_are_refused(head: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has more than one column named"):
        load_labelled(written(tmp_path, "a.csv", f"{head}\na,b,c\n"))


@together("before", [0, 1, 9000, 300_000])
@together("name", ["a.csv", "a.jsonl"])
def test_an_error_of_encoding_is_counted_in_the_file(name: str, before: int, tmp_path: Path) -> None:
    start = csv_of(ROWS).encode() if name == "a.csv" else b"\n" * 50
    start += b" " * before
    (tmp_path / name).write_bytes(start + b"\xff,a\n")
    with pytest.raises(DataError, match=f"an invalid byte at offset {len(start):,}; convert it"):
        load_labelled(str(tmp_path / name))
