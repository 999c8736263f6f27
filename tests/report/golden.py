"""The text of every question's page and terminal output, made from the made-up results.

``python tests/report/golden.py [NAME ...]`` rewrites the files in golden/.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

import made_up_cost  # noqa: E402
import made_up_evaluations  # noqa: E402
import made_up_runs  # noqa: E402
from made_up import MADE, saved  # noqa: E402
from posembed._version import __version__  # noqa: E402
from posembed.lab.cost import results as cost_results  # noqa: E402
from posembed.lab.questions import QUESTIONS  # noqa: E402
from posembed.report import evaluation, learned, tuning  # noqa: E402
from posembed.report.questions import page_of, write_report  # noqa: E402
from posembed.report.terminal import as_text  # noqa: E402

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
        if not self.hidden and data.strip():
            self.lines[-1] += data.replace("\n", " ")


def page_text(page: str) -> str:
    lines = (line.strip() for line in PageText(page).lines)
    return "\n".join(line for line in lines if line).replace(__version__, "VERSION") + "\n"


FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"


def in_folder(name: str, path: Path) -> object:
    failed = [made_up_runs.run("none", failure=FAILURE)] if name == "lengths" else []
    return saved(name, path, [*MADE[name](6 if name == "sharing" else 3), *failed])


FOLDERS: dict[str, Callable[[Path], object]] = {
    **{name: partial(in_folder, name) for name in MADE},
    "cost": lambda path: cost_results.measured_once(path, made_up_cost.result().settings, made_up_cost.result),
}
"""How the run folder of each page is made."""


def written(name: str, *, tables: bool = True) -> Path:
    """Writes the page of a run folder, in this folder. tables: whether the runs kept the rows that they learned."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    FOLDERS[name](folder)
    if not tables:
        shutil.rmtree(folder / "tables")
    return write_report(folder)


OTHERS: dict[str, Callable[[], tuple[str, list[Any], list[str]]]] = {
    "evaluate": lambda: told(evaluation, made_up_evaluations.evaluation()),
    "evaluate-perplexity": lambda: told(evaluation, made_up_evaluations.evaluation("perplexity")),
    "tune": lambda: told(tuning, made_up_evaluations.tuned()),
}
"""The page, and the tables and paragraphs of the terminal, of results without a run folder."""


def told(pages: Any, result: Any) -> tuple[str, list[Any], list[str]]:
    return pages.render(result), pages.tables(result), pages.paragraphs(result)


def texts_of(name: str) -> dict[Path, str]:
    """Returns the text of a page and what the terminal shows, by the file that keeps it."""
    if name in OTHERS:
        page, tables, paragraphs = OTHERS[name]()
        return files_of(name, page_text(page), as_text(tables, paragraphs, width=80))
    file = written(name)
    page = page_text(file.read_text(encoding="utf-8"))
    page_maker = page_of(QUESTIONS[name])
    summary = page_maker.summary(file.parent, None)
    terminal = as_text(
        page_maker.main_tables(summary), [*page_maker.answer(summary), *page_maker.notes(summary)], width=80
    )
    return files_of(name, page, terminal)


def files_of(name: str, page: str, terminal: str) -> dict[Path, str]:
    return {
        HERE / "golden" / f"{name}.txt": page,
        HERE / "golden" / f"{name}-terminal.txt": re.sub(" +\n", "\n", terminal) + "\n",
    }


@contextlib.contextmanager
def no_pictures() -> Iterator[None]:
    """Nothing is drawn in the figures of pages, of which ``texts_of`` has no text."""
    nothing: dict[str, Any] = {"svg_for_page": lambda figure, **told: "<svg></svg>"}
    with mock.patch.multiple("posembed.report.svg", **nothing), mock.patch.object(learned, "figure_of"):
        yield


if __name__ == "__main__":
    for name in sys.argv[1:] or (*FOLDERS, *OTHERS):
        for file, text in texts_of(name).items():
            file.write_text(text, encoding="utf-8")
