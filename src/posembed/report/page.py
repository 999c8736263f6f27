"""Pages: an answer, then sections with figures and tables, in one self-contained HTML file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from posembed._version import __version__
from posembed.errors import ArgumentError
from posembed.files import as_bytes, longest_name, reason, write_whole

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

    from posembed.plots.style import Style

LARGEST_PAGE = 1 << 28


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""
    """Small text below, such as an interval."""
    kind: str = ""
    """The style of the cell: "words", "muted", "good", "bad", or the kind of a verdict."""
    rank: int = 0
    """In a head, the rank of its column. A narrow terminal hides columns with the largest ranks first, never rank 0."""


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    title: str
    says: str
    """A sentence or two on how to read the table."""
    head: tuple[Cell, ...]
    rows: tuple[Row, ...]
    first: str = ""
    """The head of the first column, above the names of the rows."""


Column = tuple[str | Cell, Callable[[Any], str | Cell]]
"""The head of a column, and a function that returns the column's cell for a row."""


def table_of(
    rows: Iterable[Any],
    title: str,
    says: str,
    *columns: Column,
    first: str = "encoding",
    name: Callable[[Any], str] = lambda row: row.name,
) -> Table:
    """Returns a table with one line per row. Text below a head of kind "words" becomes a cell of that kind."""

    def cell(written: str | Cell, head: str | Cell = "") -> Cell:
        words = isinstance(head, Cell) and head.kind == "words"
        return written if isinstance(written, Cell) else Cell(written, kind="words" if words else "")

    lines = tuple(Row(name(row), tuple(cell(write(row), head) for head, write in columns)) for row in rows)
    return Table(title, says, tuple(cell(head) for head, _ in columns), lines, first)


@dataclass(frozen=True)
class Picture:
    """A figure with a title above it, and a caption below it that explains how to read it."""

    svg: Markup
    title: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Pairs:
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Folded:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Lines:
    lines: tuple[str, ...]


Part = Picture | Table | Pairs | Lines | Folded


@dataclass(frozen=True)
class Section:
    """Parts under a heading. An empty heading continues the previous section. ``says``: a text below the heading."""

    heading: str
    parts: tuple[Part, ...]
    says: str = ""


def picture(figure: Figure, *, name: str, described: str, title: str = "", caption: str = "") -> Picture:
    """Returns a figure for a page. ``name`` must be unique on the page. ``described``: a text for screen readers."""
    from posembed.report.svg import svg_for_page  # imports matplotlib, which the terminal does not need

    return Picture(Markup(svg_for_page(figure, name=name, described=escape(described))), title, caption)


LEAD = 480
"""The number of letters of the answer that fit on a screen above a figure."""


def render_page(
    *,
    title: str,
    about: str,
    answer: Sequence[str],
    sections: Sequence[Section],
    styles: Mapping[str, Style] | None = None,
) -> str:
    """Returns the page as text. Equal arguments give equal text.

    title: the question that the page answers. about: a sentence or two on the measurement. answer: paragraphs, of which
    the first few and the first picture of the sections fill a screen; the others follow. sections: the sections; empty
    sections are omitted. styles: how the figures draw each name. Tables show the colour of a name next to it.
    """
    first = next((part for section in sections for part in section.parts if isinstance(part, Picture)), None)
    rest = [replace(each, parts=tuple(part for part in each.parts if part is not first)) for each in sections]
    lead = next((end for end in range(len(answer), 1, -1) if sum(map(len, answer[:end])) <= LEAD), 1)
    parts: dict[str, Any] = {"lead": answer[:lead], "picture": first, "answer": answer[lead:], "styles": styles or {}}
    parts["sections"] = [section for section in rest if section.parts]
    page = _environment().get_template("page.html").render(version=__version__, title=title, about=about, **parts)
    # The hash distinguishes an unchanged page from an edited one.
    return f"{page}\n<!-- posembed {hashlib.sha256(as_bytes(page)).hexdigest()} -->\n"


def render_fragment(tables: Sequence[Table], answer: Sequence[str]) -> str:
    """Returns tables and paragraphs as HTML for a notebook."""
    source = (
        '{% from "parts.html" import table_of with context %}{% for table in tables %}{{ table_of(table) }}{% endfor %}'
        "{% for paragraph in answer %}<p>{{ paragraph }}</p>{% endfor %}"
    )
    return _environment().from_string(source).render(tables=tables, answer=answer, styles={})


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # the terminal's output does not need it

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["part"] = lambda part, kind: type(part).__name__ == kind
    return environment


def write_page(path: Path, page: str, *, option: str = "--report") -> Path:
    """Writes a page atomically and returns its path. Replaces only an unchanged earlier page. option: the command's
    option that names the page.

    Raises ArgumentError if the page cannot be written.
    """
    try:
        write_whole(path, as_bytes(page), refusal=why_not_replaced)
    except OSError as error:
        raise unwritten(path, reason(error), option) from error
    return path


def refuse_page(path: Path) -> None:
    """Raises the ArgumentError of ``write_page`` early, before time is spent on the results for the page."""
    why = why_not_replaced(path) if path.exists() else None
    if path.is_symlink():
        why = "it is a link"
    elif not path.parent.is_dir():
        why = f"the folder {path.parent} does not exist"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"permission denied in the folder {path.parent}"
    elif len(os.fsencode(path.name)) > (most := longest_name(path.parent)):
        why = f"the name is longer than {most} bytes"
    if why is not None:
        raise unwritten(path, why)


def unwritten(path: Path, why: str, option: str = "--report") -> ArgumentError:
    return ArgumentError(f"the page {path} cannot be written: {why}; name another file ({option})")


def why_not_replaced(path: Path) -> str | None:
    """Returns the reason why a page may not replace this file, or None if it is an unchanged earlier page."""
    if not path.is_file():
        return "it is a folder" if path.is_dir() else "it is not a file"
    try:
        page = path.read_bytes() if path.stat().st_size < LARGEST_PAGE else b""
    except OSError:
        return "the existing file cannot be read"
    signed = re.fullmatch(rb"(.*)\n<!-- posembed (\w{64}) -->\n", page, flags=re.DOTALL)
    if signed is None or hashlib.sha256(signed[1]).hexdigest() != signed[2].decode():
        return "the existing file is not a page of posembed, or was changed"
    return None
