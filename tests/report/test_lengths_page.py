from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from made_up_runs import run, runs, save, spec
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.report.questions import write_report

NASTY = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The text, the tags, and every address of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


RESULTS = [*runs(2), run("none", failure="the loss was nan at step 9 of 700; try a lower learning rate")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = save(tmp_path_factory.mktemp("runs"), RESULTS)
    return write_report(folder.path).read_text(encoding="utf-8")


def test_every_value_of_every_run_is_there(page: str) -> None:
    text = Page(page).text
    for result in RESULTS:
        assert f"{result.spec.encoding}, seed {result.spec.seed}" in text
        if result.measurements is None:
            assert f"failed: {result.failure}" in text
            continue
        for value in result.measurements.values:
            assert value.value is None or f"{value.value:.5f}" in text
    for name, value in RESULTS[0].spec.shared_settings().items():
        if name not in ("test_lengths",):
            assert f"{name.replace('_', ' ')} {value}" in text
    assert "processor a made-up one" in text


def test_one_file_that_loads_nothing(page: str) -> None:
    found = Page(page)
    assert "script" not in found.tags
    assert "link" in found.tags  # the icon, empty, so that a server is not asked for one
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert set(re.findall(r"url\((.)", page)) == {"#"}
    assert "@import" not in page


def test_text_is_escaped(tmp_path: Path) -> None:
    results = [run(NASTY, (4.0, 4.0, 4.0, 4.0), data=NASTY), run("rope", failure=NASTY, data=NASTY)]
    results = [dataclasses.replace(result, environment={NASTY: NASTY}) for result in results]
    folder = save_as_it_is(tmp_path, results)
    page = read(write_report(folder.path))
    assert "script" not in page.tags
    assert page.text.count(NASTY) > 10


def save_as_it_is(path: Path, results: list) -> RunFolder:
    """A folder that somebody else wrote."""
    folder = RunFolder(path, LengthSpec)
    folder.prepare(results[0].spec)
    for result in results:
        folder.add(result)
    return folder


def test_what_cannot_be_written_or_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(1, ("learned", "alibi")))
    with pytest.raises(ArgumentError, match="it is a folder; name another file"):
        write_report(folder.path, tmp_path)
    with pytest.raises(ArgumentError, match="cannot be written: No such file or directory"):
        write_report(folder.path, tmp_path / "nowhere" / "report.html")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_report(tmp_path / "nowhere")
    folder.file("tables", spec("learned")).write_bytes(b"not a table")
    with pytest.raises(RunFolderError, match=r"cannot be read .*; delete it to get the page without"):
        write_report(folder.path)
    folder.file("tables", spec("learned")).unlink()
    assert "learned, seed 0: 64 rows" not in read(write_report(folder.path)).text


def test_a_reading_that_cannot_be_used_is_named_and_a_reference_replaces_it(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(1, ("rope", "alibi")))
    with pytest.raises(ArgumentError, match=r"the reference 'none' was not run; the finished runs are rope, alibi"):
        write_report(folder.path, reference="none")
    folder.reading_file.write_text('{"reference": "nope"}')
    with pytest.raises(RunFolderError, match=r"reading\.json names the reference 'nope', which was not run; use --ref"):
        write_report(folder.path)
    folder.reading_file.write_text("not JSON")
    assert "compared with rope" in read(write_report(folder.path, reference="rope")).text
