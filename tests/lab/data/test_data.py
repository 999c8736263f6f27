from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from made_up_runs import runs as made_up_runs
from made_up_runs import save as write_runs
from posembed.errors import DataError
from posembed.lab.cost.measure import measure_cost
from posembed.lab.cost.results import CostResult, CostSettings, measured_once
from posembed.lab.data import documents
from posembed.lab.data.text import load_corpus
from posembed.report.page import render_page, write_page
from together import together


def decoded(ids: torch.Tensor) -> bytes:
    return ids.to(torch.uint8).numpy().tobytes()


def test_the_standard_library_is_there() -> None:
    corpus = load_corpus("stdlib")
    assert len(corpus.train) > 3_000_000
    assert 0.05 < len(corpus.held_out) / (len(corpus.train) + len(corpus.held_out)) < 0.2
    assert corpus.vocabulary == 256
    assert corpus.held_out_bytes is not None
    assert corpus.held_out_bytes.unique().tolist() == [1]
    assert len(corpus.held_out_bytes) == len(corpus.held_out)
    text = decoded(corpus.train) + decoded(corpus.held_out)
    assert b"class OrderedDict" in text
    assert b"import unittest\n\nclass TestCase" not in text


def test_files_folders_and_separators(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("ä" * 100, encoding="utf-8")
    (tmp_path / "b.md").write_text("b" * 100, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    folder = load_corpus(str(tmp_path))
    files = load_corpus(f"{tmp_path / 'b.md'},{tmp_path / 'deep' / 'a.txt'}")
    assert decoded(folder.train) == decoded(files.train)
    assert sorted(decoded(files.train).split(b"\0")) == [b"", b"b" * 90, "ä".encode() * 90]
    assert folder.sha256 == files.sha256
    assert "2 files; 1 skipped: empty, not text, or part of a run folder" in folder.description
    assert "2 files" in files.description


@pytest.mark.parametrize("data", ["", " ", "a.txt,", ",a.txt", "a.txt,,a.txt"])
def test_no_name_is_not_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 30)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="expected files or folders separated by commas"):
        load_corpus(data)
    assert load_corpus("a.txt, a.txt").sha256 == load_corpus("a.txt").sha256


def test_large_files_are_read_whole_and_images_of_disks_are_not(tmp_path: Path) -> None:
    text = b"a line of text\n" * (documents.FIRST_LOOK // 15 + 9)
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "late zero").write_bytes(text + b"\0")
    (tmp_path / "one look").write_bytes(text[: documents.FIRST_LOOK])
    with (tmp_path / "disk").open("wb") as disk:
        disk.truncate(1 << 40)
    assert [document.text for document in documents.read_documents(str(tmp_path))[0]] == [
        text[: documents.FIRST_LOOK],
        text,
    ]


def test_run_folders_are_not_read(tmp_path: Path) -> None:
    """`--data . --out runs/first`, twice."""
    (tmp_path / "a.txt").write_text("some text\n" * 30)
    (tmp_path / "settings.json").write_text('{"question": "of the user"}')
    before = load_corpus(str(tmp_path))
    assert "(2 files)" in before.description
    write_runs(tmp_path / "runs" / "first", made_up_runs())
    assert load_corpus(str(tmp_path)).sha256 == before.sha256


@pytest.fixture(scope="module")
def cost() -> CostResult:
    sizes = {"length": 16, "width": 32, "heads": 4, "layers": 2, "longest": 512, "seconds": 0}
    return measure_cost(CostSettings(encodings=("alibi",), **sizes))


@together(
    "question, out",
    list(product(["lengths", "cost"], [".", "deep", "deep/er", "new"])),
    usual=lambda *case: case in (("lengths", "."), ("cost", "deep/er")),
)
def test_what_the_lab_writes_is_not_read_wherever_it_is(
    question: str, out: str, cost: CostResult, tmp_path: Path
) -> None:
    """`--data X --out X` goes on: text beside what the lab writes stays text, and what it writes is none."""
    for name in ("a.txt", "deep/b.txt", "deep/er/results/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"some text of {name}\n" * 30)
    before, folder = load_corpus(str(tmp_path)).sha256, tmp_path / out
    if question == "cost":
        measured_once(folder, cost.settings, lambda: cost)
    else:
        write_runs(folder, made_up_runs()[:2])
        (folder / "tracking" / "wandb").mkdir(parents=True)
        (folder / "tracking" / "wandb" / "output.log").write_text("a log\n")
        (folder / "results" / ".KEY.json.01234567.partial").write_text("half a resu")
        (folder / "reading.json").write_text("{}")
        (folder / ".settings.json.01234567.partial").write_text("half of the sett")
    write_page(folder / "report.html", render_page(title="t", about="a", answer=[], sections=[]))
    assert load_corpus(str(tmp_path)).sha256 == before


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_columns_of_text_by_every_name_that_arrow_has(kind: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value(kind), "id": datasets.Value("int64")})
    rows = {"text": [f"row {i} of text" for i in range(30)], "id": list(range(30))}
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "set" / "train.parquet")
    assert load_corpus(f"hf:{tmp_path / 'set'}").description.startswith(f"{tmp_path / 'set'} (30 rows)")


def test_the_hash_does_not_depend_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a, b" / "folder"
    folder.mkdir(parents=True)
    for i in range(30):
        (folder / f"{i}.txt").write_text(f"text {i} of thirty\n" * 9)
    (tmp_path / "link").symlink_to(folder)
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(folder.parent)
    paths = [str(folder), f"{folder}/", "folder", "../a, b/folder", str(tmp_path / "link"), str(tmp_path / "copy")]
    assert len({load_corpus(path).sha256 for path in paths}) == 1
    one = tmp_path / "one.txt"
    one.symlink_to(folder / "1.txt")
    assert load_corpus(str(one)).sha256 == load_corpus(str(folder / "1.txt")).sha256


def test_the_hash_is_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text("one line\n" * 50)
    before = load_corpus(str(file)).sha256
    file.write_text("one line\n" * 49 + "one Line\n")
    assert load_corpus(str(file)).sha256 != before


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    data = tmp_path / "set"
    data.mkdir()
    (data / "train.txt").write_text("".join(f"row {i}\n" for i in range(30)))
    (data / "test.txt").write_text("held out\n")
    corpus = load_corpus(f"hf:{data}")
    assert decoded(corpus.held_out) == b"held out\0"
    assert decoded(corpus.train).count(b"\0") == 30
    (data / "train.txt").write_text("held  out\n" + "".join(f"row {i}\n" for i in range(30)))
    leaking = load_corpus(f"hf:{data}")
    assert torch.equal(leaking.train, corpus.train)
    assert "1 document not trained on, because the same text is held out" in leaking.description
    (data / "train.txt").write_text("row\0 1\n" * 3)
    with pytest.raises(DataError, match=r"row 0 of the dataset .* holds a zero byte"):
        load_corpus(f"hf:{data}")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty: expected UTF-8 text"),
        (b"  \n\n", "is empty"),
        (b"abc\0def", "not UTF-8 text: a zero byte at offset 3"),
        (b"caf\xe9", "not UTF-8 text: an invalid byte at offset 3"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(contents)
    with pytest.raises(DataError, match=message):
        load_corpus(str(tmp_path / "f"))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        load_corpus(",".join(f"file-{i}.txt" for i in range(99)).replace(",", "-"))
    with pytest.raises(DataError, match=r"no file or folder .*nowhere; the data may be \"stdlib\""):
        load_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="holds no text"):
        load_corpus(str(tmp_path))
    (tmp_path / "t.txt").write_text("some text\n" * 9)
    with pytest.raises(DataError, match=r"the tokenizer .*t\.txt cannot be loaded"):
        load_corpus(str(tmp_path / "t.txt"), tokenizer=str(tmp_path / "t.txt"))


def test_what_cannot_be_looked_at_in_a_folder_is_left_out(tmp_path: Path) -> None:
    """As in a folder that another user has closed."""
    (tmp_path / "a.txt").write_text("some text\n" * 99)
    expected = load_corpus(str(tmp_path)).sha256
    (tmp_path / "link").symlink_to("n" * 300)
    (tmp_path / "loop").symlink_to("loop")
    assert load_corpus(str(tmp_path)).sha256 == expected
