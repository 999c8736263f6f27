"""The text of every question's page, made from the made-up results. ``python tests/report/golden.py`` rewrites them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

import made_up_classes
import made_up_inits
import made_up_problems
import made_up_runs
from posembed._version import __version__
from posembed.report.questions import write_report

ENDS_LINE = {"p", "h1", "h2", "h3", "tr", "li", "summary", "figcaption", "footer"}
HIDDEN = {"style", "svg", "title"}


class PageText(HTMLParser):
    """The text of a page without its figures: one line per paragraph, heading or row of a table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines = [""]
        self.hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in HIDDEN
        if self.hidden:
            return
        if tag in ("h1", "h2", "h3"):
            self.lines[-1] += f"{'#' * int(tag[1])} "
        elif tag in ("td", "th") and self.lines[-1]:
            self.lines[-1] += " | "
        elif tag == "small":
            self.lines[-1] += " / "

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in HIDDEN
        if tag in ENDS_LINE and not self.hidden:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.lines[-1] += data.replace("\n", "")


def page_text(page: str) -> str:
    lines = (line.strip() for line in PageText(page).lines)
    return "\n".join(line for line in lines if line).replace(__version__, "VERSION") + "\n"


FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"
FOLDERS: dict[str, Callable[[Path], object]] = {
    "lengths": lambda path: made_up_runs.save(path, [*made_up_runs.runs(3), made_up_runs.run("none", failure=FAILURE)]),
    "inits": lambda path: made_up_inits.save_inits(path, made_up_inits.typical(3)),
    "addition": lambda path: made_up_problems.save_problems(path, made_up_problems.runs(3)),
    "text": lambda path: made_up_classes.save_classes(path, made_up_classes.text_runs(3)),
    "images": lambda path: made_up_classes.save_classes(path, made_up_classes.image_runs(3)),
}
"""How the run folder of each page is made."""


def text_of(name: str, folder: Path) -> str:
    """Makes the run folder and its page, and returns the page's text."""
    FOLDERS[name](folder)
    return page_text(write_report(folder).read_text(encoding="utf-8"))


def golden(name: str) -> Path:
    return HERE / "golden" / f"{name}.txt"


if __name__ == "__main__":
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as made:
            golden(name).write_text(text_of(name, Path(made)), encoding="utf-8")
