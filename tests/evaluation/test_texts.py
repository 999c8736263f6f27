"""Files and folders become documents, and documents samples of one size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from evaluated_models import save_tokenizer
from posembed.errors import DataError
from posembed.evaluation.passages import ranks_of_own
from posembed.evaluation.texts import draw_sample, read_documents, split_document
from posembed.lab.data.documents import read_documents as documents_of
from posembed.measure.jobs import Kept
from posembed.report.page import render_page, write_page


def test_wikitext_is_split_at_its_titles() -> None:
    text = " \n = One = \n \n first \n = = Part = = \n more \n = Two and more = \n \n second \n"
    assert split_document(text, at_blank_lines=True) == [
        "= One = \n \n first \n = = Part = = \n more",
        "= Two and more = \n \n second",
    ]


def test_other_files_are_split_at_blank_lines_and_files_of_a_folder_are_not(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one\nline\n \n\ntwo\n")
    (tmp_path / "a.txt").write_text("three")
    assert read_documents(tmp_path / "b.txt") == ["one\nline", "two"]
    assert read_documents([tmp_path / "b.txt", tmp_path / "a.txt"]) == ["one\nline", "two", "three"]
    assert read_documents(tmp_path) == ["three", "one\nline\n \n\ntwo"]


def test_hidden_files_are_no_texts(tmp_path: Path) -> None:
    folder = tmp_path / ".texts"  # a hidden folder may be named itself
    for name in (".DS_Store", ".git/index", "a.txt", "below/.hidden", "below/b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\xff\0" if name.startswith(".") else name.encode())
    assert read_documents(folder) == ["a.txt", "below/b.txt"]
    assert [each.text for each in documents_of(str(folder))[0]] == [b"a.txt", b"below/b.txt"]


def test_what_posembed_wrote_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    before = read_documents(tmp_path)
    results = Kept(tmp_path / "runs" / "evaluations")
    results.prepare()
    results.add("0123456789abcdef" * 4, {"perplexity": [[1.0], [2]]})
    write_page(tmp_path / "out.html", render_page(title="t", about="a", answer=[], sections=[]))
    checkpoint = tmp_path / "out"
    (checkpoint / "2_Dense").mkdir(parents=True)
    for name in ("posembed.json", "tokenizer.json", "2_Dense/config.json"):
        (checkpoint / name).write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"\xff")
    run = tmp_path / "runs" / "lengths"
    run.mkdir()
    (run / "settings.json").write_text('{"question": "lengths", "layers": 2, "batch": 8}')
    (run / "reading.json").write_text("{}")
    assert read_documents(tmp_path) == before
    (tmp_path / "settings.json").write_text('{"of": "somebody"}')
    assert len(read_documents(tmp_path)) == len(before) + 1


def test_texts_in_a_folder_of_results_stay_texts(tmp_path: Path) -> None:
    for name in ("a.txt", "b.json", "below/c.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = read_documents(tmp_path)
    results = Kept(tmp_path)
    results.prepare()
    results.add("0123456789abcdef" * 4, {"perplexity": [[1.0], [2]]})
    assert read_documents(tmp_path) == before
    assert [each.text.decode() for each in documents_of(str(tmp_path))[0]] == before


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_documents(tmp_path / "bytes")
    with pytest.raises(DataError, match="expected a text file"):
        read_documents(tmp_path / "nothing")
    for path in ("a" * 300, "a\0b", tmp_path / "bytes" / "below"):
        with pytest.raises(DataError, match="expected a text file"):
            read_documents(path)
    (tmp_path / "blank").write_text(" \n\n ")
    blank = tmp_path / "blank"
    for text, named in ((blank, f"{blank}"), ([blank, str(blank)], f"{blank} and {blank}")):
        with pytest.raises(DataError) as raised:
            read_documents(text)
        assert str(raised.value).startswith(f"no text in {named}: ")


@pytest.mark.parametrize("specials", [True, False])
def test_samples(tmp_path: Path, specials: bool) -> None:
    save_tokenizer(tmp_path, specials=specials)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    words = [[f"w{(3 * start + step) % 90}" for step in range(length)] for start, length in enumerate((9, 25, 30))]
    documents = [" ".join(document) for document in words]
    width = 8 if specials else 10

    def ids(document: int, start: int) -> list[int]:
        return [int(word[1:]) + 5 for word in words[document][start : start + width]]

    begun = draw_sample(tokenizer, documents, length=10, most=9, fewest=1, one_each=True)
    assert (begun.before, begun.after, begun.mask) == (((2,), (3,), 4) if specials else ((), (), None))
    assert begun.ids.tolist() == [ids(document, 0) for document in ((0, 1, 2) if specials else (1, 2))]
    windows = draw_sample(tokenizer, documents[1:], length=10, most=4, fewest=1, one_each=False)
    assert windows.ids.tolist() == [ids(1, start) for start in range(0, 25 - width + 1, width)] + [
        ids(2, start) for start in range(0, (4 - 25 // width) * width, width)
    ]
    with pytest.raises(DataError, match="the longest of 3 documents has 30; give smaller lengths or more text"):
        draw_sample(tokenizer, documents, length=40, most=9, fewest=1, one_each=True)


def test_text_that_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, specials=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(DataError, match="does not know most of this text"):
        draw_sample(tokenizer, ["Wörter " * 20], length=10, most=9, fewest=1, one_each=True)


def test_what_cannot_be_looked_at_in_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "link").symlink_to("n" * 300)
    assert read_documents(tmp_path) == ["text"]


def test_a_passage_that_does_not_tell_texts_apart_is_found_last() -> None:
    assert ranks_of_own(torch.ones(3, 2), torch.ones(3, 2)).tolist() == [3, 3, 3]
    assert ranks_of_own(torch.eye(3), torch.eye(3)).tolist() == [1, 1, 1]
