"""A page is written over an earlier page that nobody changed, and over nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from posembed.errors import ArgumentError
from posembed.report.page import Lines, Section, refuse_page, render_page, write_page


def page(words: str) -> str:
    return render_page(title="A title", about="", answer=[], sections=[Section("", (Lines((words,)),))])


@pytest.mark.parametrize("words", ["one", "é\udcff", "a\r\nb", "</html>\n<!-- posembed x -->"])
def test_an_earlier_page_is_replaced(words: str, tmp_path: Path) -> None:
    for text in (words, words, "other words"):
        write_page(tmp_path / "a.html", page(text))
    assert "other words" in (tmp_path / "a.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


OF_THE_USER: dict[str, Callable[[Path], object]] = {
    "thesis": lambda path: path.write_text("<html>years of work</html>"),
    "empty": lambda path: path.write_text(""),
    "binary": lambda path: path.write_bytes(b"\xff\0" * 99),
    "edited": lambda path: path.write_text(page("one").replace("one", "two")),
    "more": lambda path: path.write_text(page("one") + "more"),
    "link": lambda path: path.symlink_to(path.with_name("page.html")),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", OF_THE_USER)
def test_what_posembed_did_not_write_stays(kind: str, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", page("one"))
    path = tmp_path / "a.html"
    OF_THE_USER[kind](path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(ArgumentError, match="name another file"):
        refuse_page(path)
    with pytest.raises(ArgumentError, match="name another file"):
        write_page(path, page("two"))
    assert path.is_dir() if before is None else path.read_bytes() == before
    assert path.is_symlink() == (kind == "link")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["a.html", "page.html"]


def test_a_place_for_a_page_is_looked_at_before_the_work(tmp_path: Path) -> None:
    refuse_page(tmp_path / "a.html")
    write_page(tmp_path / "a.html", page("one"))
    refuse_page(tmp_path / "a.html")
    with pytest.raises(ArgumentError, match="does not exist; name another file"):
        refuse_page(tmp_path / "nowhere" / "a.html")
    with pytest.raises(ArgumentError, match=r"the name is longer than 2\d\d bytes"):
        refuse_page(tmp_path / ("r" * 245))
