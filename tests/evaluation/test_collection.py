"""Folders in BEIR's layout: the same collection however it is written, and errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evaluated_models import write_collection
from posembed.errors import DataError
from posembed.evaluation.collection import read_collection
from together import together

QUERY_WITHOUT_TEXT = '{"_id": "q77", "text": " "}'
HEADER = "query-id\tcorpus-id\tscore\n"


def rewrite(change: Callable[[bytes], bytes], *names: str) -> Callable[[Path], None]:
    def rewritten(folder: Path) -> None:
        for name in names or ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            (folder / name).write_bytes(change((folder / name).read_bytes()))

    return rewritten


def zipped(folder: Path) -> None:
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()


def hidden_files(folder: Path) -> None:
    """What a Mac and editors leave beside the files."""
    for name in ("._train.tsv", ".test.tsv.swp", "test.tsv.bak"):
        (folder / "qrels" / name).write_bytes(b"\x00\x05")
    (folder / "qrels/test.tsv").rename(folder / "qrels/dev.tsv")


def other_columns(folder: Path) -> None:
    lines = [line.split("\t") for line in (folder / "qrels/test.tsv").read_text().splitlines()]
    (folder / "qrels/test.tsv").write_text("".join(f"{d}\t{s}\t{q}\n" for q, d, s in lines))


def whole_numbers(folder: Path) -> None:
    path = folder / "qrels/test.tsv"
    path.write_text(path.read_text().replace("\t1\n", "\t1.0\n"))


@together(
    "change",
    [
        rewrite(lambda content: b"\xef\xbb\xbf" + content),
        rewrite(lambda content: content.replace(b"\n", b"\r\n")),
        rewrite(lambda content: content + b"\n  \n"),
        rewrite(lambda content: content.replace(b'"_id": "', b'"_id": " '), "corpus.jsonl", "queries.jsonl"),
        rewrite(lambda content: content.replace(HEADER.encode(), b""), "qrels/test.tsv"),
        rewrite(lambda content: content.rstrip(), "qrels/test.tsv"),
        zipped,
        other_columns,
        whole_numbers,
        hidden_files,
        lambda folder: (folder / "qrels/test.tsv").rename(folder / "qrels/dev.tsv"),
    ],
)
def test_the_same_collection_in_other_forms(tmp_path: Path, change: Callable[[Path], None]) -> None:
    expected = read_collection(write_collection(tmp_path / "plain"))
    change(write_collection(tmp_path / "other"))
    assert read_collection(tmp_path / "other") == expected
    assert len(expected.documents) == len(expected.queries) == 12
    assert expected.judged["q3"] == {"d3": 1}


def test_titles_and_other_scripts(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "folder", documents=1)
    text = "naïve \u2028 日本語 text"
    line = {"_id": "ü", "title": "Title", "text": text}
    (folder / "corpus.jsonl").write_text(json.dumps(line, ensure_ascii=False), encoding="utf-8")
    (folder / "qrels/test.tsv").write_text("q0\tü\t2\n", encoding="utf-8")
    found = read_collection(folder)
    assert found.documents == {"ü": f"Title {text}"}
    assert found.judged == {"q0": {"ü": 2}}


def add(name: str, line: str) -> Callable[[Path], None]:
    def added(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(f"{line}\n")

    return added


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    encoded = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(encoded)


@together(
    ("change", "message"),
    [
        (lambda folder: (folder / "corpus.jsonl").unlink(), "corpus.jsonl is missing, and the folder holds qrels and"),
        (lambda folder: (folder / "qrels/test.tsv").unlink(), r"there is no qrels/\*.tsv"),
        (add("corpus.jsonl", '{"id": "d99", "contents": "x"}'), "line 13: expected a JSON object .* got .*contents"),
        (add("corpus.jsonl", "{"), "line 13: expected a JSON object"),
        (add("corpus.jsonl", "[]"), r"line 13: .* got '\[\]"),
        (add("corpus.jsonl", '{"_id": "d1", "text": "again"}'), "line 13: the id 'd1' occurs twice"),
        (add("corpus.jsonl", '{"_id": "d99", "text": null}'), "line 13: expected a JSON object with the texts"),
        (add("corpus.jsonl", '{"_id": "d1 ", "text": "again"}'), "line 13: the id 'd1' occurs twice"),
        (write("corpus.jsonl", ""), "the file is empty"),
        (
            add("corpus.jsonl", '{"_id": "d99", "text": "half \\ud83d of"}'),
            "line 13: expected .*surrogates not allowed",
        ),
        (add("queries.jsonl", '{"_id": "\\udc00", "text": "a"}'), "line 13: expected .*surrogates not allowed"),
        (add("corpus.jsonl", "[" * 100_000), "line 13: expected a JSON object .* nested too deeply"),
        (add("qrels/test.tsv", f"q1\td1\t1{'0' * 400}"), r"line 14: .*\(a whole number of up to six digits\)"),
        (add("qrels/test.tsv", f"q1\td1\t{'9' * 5000}"), r"line 14: .*\(a whole number of up to six digits\)"),
        (write("queries.jsonl", b"\xff\xfe"), "not UTF-8"),
        (lambda folder: (folder / "queries.jsonl").rename(folder / "queries.jsonl.gz"), "cannot be read"),
        (add("qrels/test.tsv", "q1 0 d1 1"), "line 14: expected three columns separated by tabs"),
        (add("qrels/test.tsv", "q1\td1\tyes"), "line 14: .* got 'q1.*yes'"),
        (add("qrels/test.tsv", "q1\td1\t2"), "line 14: 'q1' and 'd1' have two grades"),
        (write("qrels/test.tsv", HEADER), "it holds no judgement"),
        (add("qrels/test.tsv", "q77\td1\t1"), "the query 'q77' has no text in queries.jsonl"),
        (write("qrels/test.tsv", "q1\t1\t1\nq2\t2\t1\n"), "corpus.jsonl has no judged document, such as '1' and '2'"),
        (
            lambda folder: (
                add("qrels/test.tsv", "q77\td1\t1")(folder) or add("queries.jsonl", QUERY_WITHOUT_TEXT)(folder)
            ),
            "the query 'q77' has no text",
        ),
        (
            lambda folder: (
                (folder / "qrels/test.tsv").replace(folder / "qrels/a.tsv") and add("qrels/b.tsv", "")(folder)
            ),
            "expected one of the files in .*: a, b; no split was named",
        ),
    ],
)
def test_errors_say_what_is_wrong(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    change(write_collection(tmp_path / "folder"))
    with pytest.raises(DataError, match=message):
        read_collection(tmp_path / "folder")


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scifact.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="found a file; unpack"):
        read_collection(tmp_path / "scifact.zip")
    with pytest.raises(DataError, match="found nothing there"):
        read_collection(tmp_path / "none")
    with pytest.raises(DataError, match="got 'dev'"):
        read_collection(write_collection(tmp_path / "folder"), "dev")


def test_notes_count_what_is_left_out(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "folder")
    add("queries.jsonl", '{"_id": "extra", "text": "w1"}')(folder)
    add("corpus.jsonl", '{"_id": "empty", "text": ""}')(folder)
    add("corpus.jsonl", '{"_id": "q1", "text": "w1 w2"}')(folder)
    add("qrels/test.tsv", "q0\tgone\t1")(folder)
    found = read_collection(folder)
    assert "extra" not in found.queries
    notes = " ".join(found.notes)
    for words in ("1 of 13 queries have no", "lacks 1 judged document.", "1 document without text", "(queries: 1)"):
        assert words in notes
