"""The documentation site: it is built without a warning, has every public name, and fetches nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import pytest

from browser import CHROMIUM, opened
from public_names import public_names
from together import asked

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\ssrc=[\"']?([^\"' >]+)|<link\b[^>]*\shref=[\"']?([^\"' >]+)"
    r"|url\([\"']?([^\"')]+)|@import\s+[\"']([^\"']+)"
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the site was not looked at")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
    ]  # --quiet would hide warnings
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def entry_of(name: str, value: Any) -> str:
    """The anchor of a name: where it is defined, or the public name of a value that does not know."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    return name.rpartition(".")[2]


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    anchors = {anchor for page in pages for anchor in re.findall(r'id="(posembed[\w.]+)"', page)}
    anchors |= {anchor.rpartition(".")[2] for anchor in anchors}
    assert [name for name, value in public_names().items() if entry_of(name, value) not in anchors] == []


class Page(HTMLParser):
    """The addresses to which a page links, those that it loads, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.addresses.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def test_every_link_leads_to_a_file_and_to_its_anchor(site: Path) -> None:
    pages = {file: Page(file) for file in site.rglob("*.html")}
    lost = []
    for file, page in pages.items():
        for address in page.addresses:
            parts = urlsplit(address)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme or parts.netloc:
                continue
            anchors = pages[target].anchors if target in pages and parts.fragment else {unquote(parts.fragment)}
            if not target.is_file() or unquote(parts.fragment) not in anchors:  # a folder would be listed, from disk
                lost.append((file.name, address))
    assert lost == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        for match in LOADED.findall(file.read_text(encoding="utf-8")):
            address = next(filter(None, match))
            assert "//" not in address or address.startswith("data:"), f"{file.relative_to(site)} loads {address}"


@needs_chromium
@pytest.mark.parametrize("width", [400, pytest.param(1200, marks=pytest.mark.whole)])
def test_every_page_fits_its_window(site: Path, width: int, tmp_path: Path) -> None:
    """Without --whole, of the files that pages link to, which are all shown alike, the largest of each folder."""
    shown = sorted(site.rglob("*.html"), key=lambda page: page.stat().st_size)
    files = {
        page.parent: page for page in shown if page.relative_to(site).parts[0] in ("benchmarks", "examples", "src")
    }
    shown = [page for page in shown if asked["whole"] or page in files.values() or page.parent not in files]
    assert len(files) >= 3
    assert len(shown) > 50
    pages = [page.as_uri() for page in shown]
    harness = Path(__file__).with_name("site.html").as_uri()
    query = urlencode([("width", width), *(("page", page) for page in pages)])
    dumped, console = opened(f"{harness}?{query}", tmp_path)
    [found] = re.findall(r"<pre>(.*?)</pre>", dumped)
    assert json.loads(unescape(found)) == {page: {"overflow": 0, "lost": []} for page in pages}
    assert console == []


def first_found(site: Path, page: str, words: list[str], folder: Path) -> dict[str, str]:
    """The entry that a search from this page lists first, for each of several words."""
    harness = Path(__file__).with_name("search.html").as_uri()
    query = urlencode([("site", (site / page).as_uri()), *(("words", word) for word in words)])
    shown, console = opened(f"{harness}?{query}", folder, "--virtual-time-budget=60000")
    assert console == []
    [found] = re.findall(r"<pre>(.*?)</pre>", shown)
    return json.loads(unescape(found))


@needs_chromium
@pytest.mark.parametrize("page", ["reference/tables.html", pytest.param("index.html", marks=pytest.mark.whole)])
def test_search_works_from_disk(site: Path, page: str, tmp_path: Path) -> None:
    found = first_found(site, page, ["resize", "left padding", "rolling table"], tmp_path)
    assert found["resize"].startswith("reference/checkpoints.html#posembed.checkpoints.resize")
    assert found["left padding"].endswith("pitfalls.html#padding-on-the-left-shifts-the-positions")
    assert "layers.html" in found["rolling table"]


@needs_chromium
def test_a_search_for_a_public_name_lists_its_entry_first(site: Path, tmp_path: Path) -> None:
    names = {name.rpartition(".")[2] for name in public_names()}
    names = {name for name in names if not re.fullmatch("[A-Z]?[a-z]+|[A-Z]+", name)}  # compare, Attention: also words
    assert {"LearnedPositionalEmbedding", "compare_tables", "resize_table"} < names
    found = first_found(site, "index.html", sorted(names), tmp_path)
    assert {name for name, entry in found.items() if not (entry or "").endswith(f".{name}")} == set()
