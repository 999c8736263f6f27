"""The page in headless Chromium, in frames as wide as a window on a desk and as a telephone (browser.html)."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from browser import CHROMIUM, opened
from made_up_runs import runs
from report.golden import FOLDERS
from report.pages import OWN, pages
from together import asked

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the page was not looked at")


@dataclass(frozen=True)
class Seen:
    by_width: dict[str, Any]
    console: list[str]


def look_at(pages: list[Path], folder: Path, *widths: int) -> list[Seen]:
    """Opens the pages together, in one browser. Their messages are in one console."""
    harness = Path(__file__).with_name("browser.html").as_uri()
    asked = urlencode([*(("page", page.as_uri()) for page in pages), *(("width", width) for width in widths)])
    shown, console = opened(f"{harness}?{asked}", folder)
    found = re.search(r"<pre>(.*?)</pre>", shown, re.DOTALL)
    assert found is not None, shown
    measured = json.loads(html.unescape(found[1]))
    return [Seen(measured[page.as_uri()], console) for page in pages]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Every kind of page, on a telephone and on a desk; without --whole, of the questions whose pages are special."""
    folder = tmp_path_factory.mktemp("browser")
    kinds = dict(pages(folder, dict.fromkeys(FOLDERS, True) if asked["whole"] else OWN))
    return dict(zip(kinds, look_at(list(kinds.values()), folder, 400, 1200, *[1900] * asked["whole"]), strict=True))


def test_every_kind_of_page_at_every_width(seen: dict[str, Seen]) -> None:
    """Nothing overflows, is cut, is small or is covered by something else, whatever the names and the numbers."""
    wrong = {}
    for kind, shown in seen.items():
        assert shown.console == []
        for width, page in shown.by_width.items():
            assert page["width"] == int(width)
            found = {what: figure[what] for figure in page["figures"] for what in ("cut", "covered") if figure[what]}
            found |= {"hidden": page["hidden"]} if any(page["hidden"]) else {}
            found |= {"overflow": page["overflow"]} if page["overflow"] else {}
            found |= {"small": page["figures"]} if any(each["smallest"] < 8 for each in page["figures"]) else {}
            if kind in FOLDERS:
                hidden = {title: pixels for title, pixels in page["tables"].items() if pixels > 0}
                found |= {"out of sight in a window on a desk": hidden} if hidden and width == "1200" else {}
            wrong |= {(kind, width): found} if found else {}
    assert wrong == {}


def test_every_figure_is_there(seen: dict[str, Seen]) -> None:
    """Many encodings, some with long names: one that explodes, one that ends, one that failed."""
    images = {"At": 0, "initialisation": 4, "training:": 6, "Norms,": 0, "Mean": 0, "Training": 0}
    heads = len([*runs(1), "none", "sinusoidal+window"])
    for width, page in seen["many lengths"].by_width.items():
        names = [each["name"].split()[5 if each["name"].startswith("The table") else 0] for each in page["figures"]]
        assert names == ["At", "At", *["initialisation", "training:"] * 2, "Norms,", *["Mean"] * heads, "Training"]
        assert [len(figure["images"]) for figure in page["figures"]] == [images[name] for name in names]
        for figure in page["figures"]:
            assert figure["width"] > 0.85 * min(int(width), 700)
            assert figure["height"] > 150
            assert all(image > 100 for image in figure["images"])


def test_what_is_wrong_would_be_seen(tmp_path: Path) -> None:
    """The same measurements of a page that has every fault."""
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><link rel="icon" href="data:,"><div style="width: 900px">wide</div>'
        '<figure><svg aria-label="a" viewBox="0 0 100 50" width="0" height="0">'
        '<text x="90" y="20" font-size="5">cut</text></svg></figure><script>console.error("broken")</script>',
        encoding="utf-8",
    )
    good = page.with_name("good.html")
    good.write_text('<!doctype html><link rel="icon" href="data:,">short', encoding="utf-8")
    bad, beside = look_at([page, good], tmp_path, 400)
    assert beside.by_width["400"]["overflow"] == 0
    assert any("broken" in line for line in bad.console)
    assert bad.by_width["400"]["overflow"] > 400
    (figure,) = bad.by_width["400"]["figures"]
    assert figure["width"] == 0
    assert figure["cut"] == ["cut"]
    assert figure["smallest"] < 8
