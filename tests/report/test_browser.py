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
from transformers import ViTConfig, ViTModel

from browser import CHROMIUM, opened
from evaluated_models import row_of
from made_up_runs import run, runs, save
from posembed.checkpoints.inspect import inspect_checkpoint
from posembed.evaluation.results import Evaluation
from posembed.report.checkpoint import render
from posembed.report.evaluation import render as evaluation_page
from posembed.report.page import write_page
from posembed.report.questions import write_report
from report.golden import FOLDERS
from report.pages import pages
from tiny_models import TEXT, saved, tiny_model
from together import asked

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the page was not looked at")

LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2}


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
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Many encodings, some with long names: one that explodes, one that ends, one that failed."""
    folder = tmp_path_factory.mktemp("browser")
    results = [*runs(2), run("none", (4.2, 80.0, 3000.0, 2e7)), run("sinusoidal+window", (3.9, 8.0, 20.0, 50.0))]
    results.append(run("rope+window", failure="the loss was nan at step 84 of 700; try a lower learning rate"))
    [seen] = look_at([write_report(save(folder / "runs", results).path)], folder, 1100, 400)
    return seen


def test_no_console_message(seen: Seen) -> None:
    assert seen.console == []


@pytest.mark.parametrize("width", ["1100", "400"])
def test_nothing_overflows(seen: Seen, width: str) -> None:
    assert seen.by_width[width]["width"] == int(width)
    assert seen.by_width[width]["overflow"] == 0


@pytest.mark.parametrize("width", ["1100", "400"])
def test_every_figure_is_there_whole_and_legible(seen: Seen, width: str) -> None:
    figures = seen.by_width[width]["figures"]
    images = {"At": 0, "initialisation": 4, "training:": 6, "Norms,": 0, "Mean": 0, "Training": 0}
    names = [figure["name"].split()[5 if figure["name"].startswith("The table") else 0] for figure in figures]
    heads = len([*runs(1), "none", "sinusoidal+window"])
    assert names == ["At", "At", *["initialisation", "training:"] * 2, "Norms,", *["Mean"] * heads, "Training"]
    assert [len(figure["images"]) for figure in figures] == [images[name] for name in names]
    for figure in figures:
        assert figure["width"] > 0.85 * min(int(width), 700)
        assert figure["height"] > 150
        assert all(image > 100 for image in figure["images"])
        assert figure["cut"] == []
        assert figure["smallest"] >= 8


def test_every_kind_of_page_at_three_widths(tmp_path: Path) -> None:
    """Nothing overflows, is cut, is small or is covered by something else, whatever the names and the numbers."""
    kinds = dict(pages(tmp_path))
    seen = look_at(list(kinds.values()), tmp_path, 400, 1200, *[1900] * asked["whole"])
    wrong = {}
    for kind, shown in zip(kinds, seen, strict=True):
        assert shown.console == []
        for width, page in shown.by_width.items():
            found = {what: figure[what] for figure in page["figures"] for what in ("cut", "covered") if figure[what]}
            found |= {"hidden": page["hidden"]} if any(page["hidden"]) else {}
            found |= {"overflow": page["overflow"]} if page["overflow"] else {}
            if kind in FOLDERS:
                found |= {"small": page["figures"]} if any(each["smallest"] < 8 for each in page["figures"]) else {}
                hidden = {title: pixels for title, pixels in page["tables"].items() if pixels > 0}
                found |= {"out of sight in a window on a desk": hidden} if hidden and width == "1200" else {}
            wrong |= {(kind, width): found} if found else {}
    assert wrong == {}


def test_pages_about_checkpoints(tmp_path: Path) -> None:
    """A line of positions and a grid, and an evaluation with many rows, as narrow as a telephone."""
    line = tiny_model("bert", TEXT)
    vit = ViTModel(ViTConfig(image_size=(32, 96), patch_size=16, hidden_size=32, intermediate_size=16, **LAYERS))
    pages = [
        write_page(tmp_path / f"{name}.html", render(inspect_checkpoint(saved(model, tmp_path / name))))
        for name, model in (("line", line), ("grid", vit))
    ]
    values = {"recall at 1": {512: (1.0, 0.0, 1.0), 2048: (1.0, 0.0, 0.5)}}
    rows = [row_of(f"a-checkpoint-{n}", values, length=None) for n in range(9)]
    rows.append(row_of("a-checkpoint-1", values, baseline="chunked at 512"))
    evaluation = Evaluation("sentences", ("recall at 1",), (512, 2048), 3, tuple(rows), ())
    pages.append(write_page(tmp_path / "evaluation.html", evaluation_page(evaluation)))
    for seen, figures in zip(look_at(pages, tmp_path, 400), (5, 3, 2), strict=True):
        assert seen.console == []
        assert seen.by_width["400"]["overflow"] == 0
        assert len(seen.by_width["400"]["figures"]) == figures
        for figure in seen.by_width["400"]["figures"]:
            assert figure["cut"] == []
            assert figure["smallest"] >= 8


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
