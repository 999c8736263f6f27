"""The user's own files: a file to test on, files without a header, pairs in segments, and GLUE's files."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from posembed.errors import ArgumentError, DataError
from posembed.lab.data import tables
from posembed.lab.data.labelled import load_labelled
from posembed.lab.data.tokenizer import Pairs, encode, read_tokenizer
from published_files import SENTENCES, write_glue, written

ROWS = [(f"text number {i}", ("spam", "ham")[i % 2]) for i in range(20)]
TESTS = [(f"another {i}", ("spam", "ham")[i % 2]) for i in range(6)]


# --- a file to test on -------------------------------------------------------------------------------------------


def test_a_file_to_test_on_is_the_held_out_part(tmp_path: Path) -> None:
    train, test = written(tmp_path, "train.csv", ROWS), written(tmp_path, "test.csv", TESTS)
    there = load_labelled(train, test_data=test)
    assert [(e.text, e.label) for e in there.train] == ROWS
    assert [(e.text, e.label) for e in there.held_out] == TESTS
    assert "train.csv and test.csv: 2 classes; 20 training examples, 6 from 6 other documents held out" in (
        there.description
    )


def test_a_test_text_that_is_trained_on_is_reported_and_left_out(tmp_path: Path) -> None:
    train = written(tmp_path, "a/same.csv", [*ROWS, (" another   3 ", "ham")])
    there = load_labelled(train, test_data=written(tmp_path, "b/same.csv", TESTS))
    assert [(e.text, e.label) for e in there.train] == ROWS
    assert "20 training examples, 1 more left out because they are held out too" in there.description
    with pytest.raises(DataError, match="every training text is held out too"):
        load_labelled(train, test_data=train)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ([*TESTS, ("new", "eggs")], "no training example of 'eggs'|single example: 1, such as 'eggs'"),
        ([("new", "eggs"), ("newer", "eggs")], "no training example of 'eggs'"),
        (TESTS[::2], "has no held-out example of 'ham'"),
    ],
)
def test_classes_must_agree(test: list[tuple[str, ...]], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_labelled(written(tmp_path, "a.csv", ROWS), test_data=written(tmp_path, "b.csv", test))


def test_the_test_file_needs_the_columns_too(tmp_path: Path) -> None:
    test = written(tmp_path, "b.csv", TESTS, head=("words", "label"))
    with pytest.raises(DataError, match=r"b\.csv has no column named 'text'; it has words, label"):
        load_labelled(written(tmp_path, "a.csv", ROWS), test_data=test)
    for data in ("stdlib", "hf:some/set", "sst2"):
        with pytest.raises(DataError, match="a held-out part of its own"):
            load_labelled(data, test_data=test)


@pytest.mark.parametrize("pairs", [None, "joined", "segments"])
def test_a_column_is_not_read_twice(pairs: str | None, tmp_path: Path) -> None:
    file = written(tmp_path, "a.csv", ROWS)
    with pytest.raises(DataError, match=r"names a column of .* twice"):
        load_labelled(file, text_column="text, text", label_column="label", pairs=pairs)


# --- no header ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_columns_by_number_keep_the_first_row(name: str, order: tuple[int, int], tmp_path: Path) -> None:
    rows = [tuple(row[i] for i in order) for row in ROWS]
    text, label = (str(1 + order.index(i)) for i in (0, 1))
    there = load_labelled(written(tmp_path, name, rows, head=()), text_column=text, label_column=label)
    assert {(e.text, e.label) for e in (*there.train, *there.held_out)} == set(ROWS)
    headed = load_labelled(written(tmp_path, f"headed{name}", ROWS))
    assert there.sha256 == headed.sha256


def test_an_error_about_columns_says_what_to_do_without_a_header(tmp_path: Path) -> None:
    without = r"If the file has no header, give the numbers of the columns: --text-column 1 --label-column 2$"
    for rows in (ROWS, [("0", "0"), *((str(i), str(i % 2)) for i in range(9))]):  # two cells that are equal
        data = written(tmp_path, "a.csv", rows, head=())
        for columns in ({}, {"text_column": "text", "label_column": "label"}):
            with pytest.raises(DataError, match=without):
                load_labelled(data, **columns)


def test_a_header_is_not_an_example(tmp_path: Path) -> None:
    data = written(tmp_path, "a.csv", ROWS, head=("review", "stars"))
    with pytest.raises(DataError, match=r"looks like a header \(review, stars\).* --text-column review --label-column"):
        load_labelled(data, text_column="1", label_column="2")
    # A class may be called as columns are.
    rows = [(f"what is {i}", "question") for i in range(6)] + [(f"it is {i}", "sentence") for i in range(6)]
    there = load_labelled(written(tmp_path, "b.csv", rows, head=()), text_column="1", label_column="2")
    assert there.labels == ("question", "sentence")
    # Columns of a header may be called by numbers.
    data = written(tmp_path, "c.csv", ROWS, head=("1", "2"))
    assert load_labelled(data, text_column="1", label_column="2").sha256 == there_with_names(tmp_path)


def test_an_example_that_holds_the_numbers_of_columns_is_not_a_header(tmp_path: Path) -> None:
    rows = [(str(1 + i % 2), str(3 + i % 4), f"text {i}") for i in range(12)]
    there = load_labelled(written(tmp_path, "a.csv", rows, head=()), text_column="3", label_column="1")
    assert {(e.text, e.label) for e in (*there.train, *there.held_out)} == {(text, label) for label, _, text in rows}
    # Names such as years are those of a header.
    headed = written(tmp_path, "b.csv", [(text, label) for label, _, text in rows], head=("text", "2019"))
    assert load_labelled(headed, label_column="2019").sha256 == there.sha256


def there_with_names(tmp_path: Path) -> str:
    return load_labelled(written(tmp_path, "names.csv", ROWS)).sha256


def test_numbers_of_columns_that_do_not_exist(tmp_path: Path) -> None:
    data = written(tmp_path, "a.csv", ROWS, head=())
    with pytest.raises(DataError, match=r"a\.csv has no column named '3'; it has 1, 2"):
        load_labelled(data, text_column="3", label_column="2")
    with pytest.raises(DataError, match="holds the label"):
        load_labelled(data, text_column="1")


# --- pairs -------------------------------------------------------------------------------------------------------


def test_pairs_are_joined_or_kept_apart(tmp_path: Path) -> None:
    rows = [(f"p{i}", f"h{i}", str(i % 2)) for i in range(10)]
    data = written(tmp_path, "a.csv", rows, head=("premise", "hypothesis", "label"))
    joined = load_labelled(data, text_column="premise,hypothesis")
    apart = load_labelled(data, text_column="premise,hypothesis", pairs="segments")
    assert joined.train[0].second is None
    assert apart.train[0].second is not None
    wanted = [(f"{e.text}\n{e.second}", e.document) for e in apart.held_out]
    assert [(e.text, e.document) for e in joined.held_out] == wanted
    assert load_labelled(data, text_column="premise,hypothesis", pairs="joined") == joined
    with pytest.raises(ArgumentError, match=r"--pairs segments needs two text columns, .*; got 1: premise"):
        load_labelled(data, text_column="premise", pairs="segments")
    with pytest.raises(ArgumentError, match="needs two text columns"):
        load_labelled("stdlib", pairs="segments")
    with pytest.raises(ArgumentError, match="pairs must be one of joined, segments; got 'both'"):
        load_labelled(data, pairs="both")


def truncated_as_in_bert(first: int, second: int, room: int) -> tuple[int, int]:
    """The loop of BERT's code (_truncate_seq_pair)."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_pairs_are_read_and_truncated_as_in_bert() -> None:
    drawn = random.Random(0)
    texts = [("x" * drawn.randint(1, 12), "y" * drawn.randint(1, 12)) for _ in range(60)]
    bytes_ = read_tokenizer("bytes", [])
    first, second = (encode(bytes_, [pair[i] for pair in texts]) for i in range(2))
    pairs = Pairs(first, second, separator=256)
    assert pairs.lengths().tolist() == [len(a) + len(b) + 2 for a, b in texts]
    for limit in (4, 5, 8, 11, 40):
        ids, lengths, segments = pairs.batch(torch.arange(60), limit)
        for row, (a, b) in enumerate(texts):
            x, y = truncated_as_in_bert(len(a), len(b), limit - 2)
            wanted = [*b"x" * x, 256, *b"y" * y, 256]
            assert ids[row, : lengths[row]].tolist() == wanted
            assert not ids[row, lengths[row] :].any()
            assert segments[row, : lengths[row]].tolist() == [0] * (x + 1) + [1] * (y + 1)
    whole = Pairs(first, second, separator=256, keep_first=True)
    for row, (x, y) in enumerate(zip(*whole.parts(14), strict=True)):
        assert (x, y) == (min(len(texts[row][0]), 6), min(len(texts[row][1]), 12 - x))


# --- GLUE --------------------------------------------------------------------------------------------------------

TEXTS = {"sst2": None, "qnli": ('what is "3?', "it is 3"), "qqp": ("how 3?", "why 3?"), "mnli": ("premise 3", "so 3")}
TEXTS["mnli-mismatched"] = TEXTS["mnli"]


@pytest.mark.parametrize("name", SENTENCES)
def test_the_files_of_glue(name: str, tmp_path: Path) -> None:
    write_glue(tmp_path, name)
    pairs = "segments" if tables.paired(name) else None
    there = load_labelled(f"{name}:{tmp_path}", pairs=pairs)
    assert (len(there.train), len(there.held_out)) == (12, 6)
    assert len(there.labels) == (3 if name.startswith("mnli") else 2)
    example = there.train[3]
    assert (example.text, example.second) == (TEXTS[name] or ("a film 3 ", None))
    assert example.label == SENTENCES[name][1](3)[-1]
    with pytest.raises(DataError, match="names its own columns"):
        load_labelled(f"{name}:{tmp_path}", text_column="sentence")


def test_rows_of_qqp_that_lack_columns_are_counted(tmp_path: Path) -> None:
    write_glue(tmp_path, "qqp")
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("99\t1\t2\tonly one question\n")
    there = load_labelled(f"qqp:{tmp_path}", pairs="segments")
    assert len(there.train) == 12
    assert "1 with missing columns skipped" in there.description


def test_a_folder_that_is_not_of_glue(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no train\.tsv and no dev_matched\.tsv; expected train\.tsv and dev_m"):
        load_labelled(f"mnli:{tmp_path}")
    write_glue(tmp_path, "sst2")
    with pytest.raises(DataError, match=r"train\.tsv has no column named 'question'; it has sentence, label"):
        load_labelled(f"qnli:{tmp_path}")
    with pytest.raises(DataError, match="squad has no labelled texts; give it to posembed compare tasks spans"):
        load_labelled("squad")


class Split(list[dict[str, object]]):
    """A split as the datasets library returns it: rows, and the features of their columns."""

    @property
    def features(self) -> dict[str, object]:
        return dict.fromkeys(self[0]) | {"label": SimpleNamespace(names=["no", "yes"])}


@pytest.mark.parametrize(("name", "split"), [("mnli", "matched"), ("mnli-mismatched", "mismatched")])
def test_a_name_alone_is_the_hub_s(name: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's data set of MNLI has two development sets, and test sets without labels."""

    def load(path: str, config: str | None) -> dict[str, Split]:
        assert (path, config) == ("nyu-mll/glue", "mnli")
        return {
            part: Split({"premise": f"{part} {i}", "hypothesis": "so", "label": i % 2, "idx": i} for i in range(8))
            for part in ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
        }

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    there = load_labelled(name, pairs="segments")
    assert (there.train[1].text, there.train[1].second, there.train[1].label) == ("train 1", "so", "yes")
    assert {example.text.split()[0] for example in there.held_out} == {f"validation_{split}"}
    assert f"its own train and validation_{split} splits" in there.description


def test_a_split_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Split([{"premise": "a", "hypothesis": "b", "label": 0}])
    one = SimpleNamespace(load_dataset=lambda path, config: {"train": rows, "validation_matched": rows})
    monkeypatch.setitem(sys.modules, "datasets", one)
    with pytest.raises(DataError, match="has no split named validation_mismatched, only train, validation_matched"):
        load_labelled("mnli-mismatched")
