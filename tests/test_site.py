"""The documentation site: it is built without a warning, has every public name, and fetches nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from browser import CHROMIUM, opened
from public_names import public_names

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


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        for match in LOADED.findall(file.read_text(encoding="utf-8")):
            address = next(filter(None, match))
            assert "//" not in address or address.startswith("data:"), f"{file.relative_to(site)} loads {address}"


@needs_chromium
@pytest.mark.parametrize("width", [400, 1200])
def test_every_page_fits_its_window(site: Path, width: int, tmp_path: Path) -> None:
    pages = [page.as_uri() for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 30
    harness = Path(__file__).with_name("site.html").as_uri()
    asked = urlencode([("width", width), *(("page", page) for page in pages)])
    shown, console = opened(f"{harness}?{asked}", tmp_path)
    [found] = re.findall(r"<pre>(.*?)</pre>", shown)
    assert json.loads(unescape(found)) == {page: {"overflow": 0, "lost": []} for page in pages}
    assert console == []


@needs_chromium
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("LearnedPositionalEmbedding", "reference/layers.html"),
        ("resize", "checkpoints.html"),
        ("left padding", "guide.html"),
    ],
)
def test_search_works_from_disk(site: Path, words: str, page: str, tmp_path: Path) -> None:
    address = f"{(site / 'index.html').as_uri()}?q={words.replace(' ', '%20')}"
    shown, console = opened(address, tmp_path)
    results = re.findall(r'<a href="([^"?#]+)[^"]*" class="md-search-result__link"', unescape(shown))
    assert any(result.endswith(page) for result in results), (words, results)
    assert console == []
