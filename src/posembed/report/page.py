"""What all pages share: an answer, then sections of figures and tables, in one self-contained HTML file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from posembed._version import __version__
from posembed.errors import ArgumentError
from posembed.files import as_bytes, reason, write_whole
from posembed.report.drawing import Style, svg_for_page

LARGEST_PAGE = 1 << 28


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""
    """Small, below: an interval."""
    kind: str = ""
    """How it looks: "words", "muted", "good", "bad", or the kind of a verdict."""


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    title: str
    says: str
    """How to read it, in a sentence or two."""
    head: tuple[Cell, ...]
    rows: tuple[Row, ...]
    first: str = ""
    """What the rows are: the head above their names."""


@dataclass(frozen=True)
class Picture:
    """A figure with a title above and, below, how to read it."""

    svg: Markup
    title: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Pairs:
    """Names and values, such as settings."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Folded:
    """Parts that a reader opens: evidence."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Lines:
    """Sentences, one below the other."""

    lines: tuple[str, ...]


Part = Picture | Table | Pairs | Lines | Folded


@dataclass(frozen=True)
class Section:
    """Parts under a heading; without one, they follow what is before. says: a sentence below the heading."""

    heading: str
    parts: tuple[Part, ...]
    says: str = ""


def picture(figure: Figure, *, name: str, described: str, title: str = "", caption: str = "") -> Picture:
    """A figure for a page. name: its own among the page's figures. described: what a screen reader says."""
    return Picture(Markup(svg_for_page(figure, name=name, described=escape(described))), title, caption)


def render_page(
    *,
    title: str,
    about: str,
    answer: Sequence[str],
    sections: Sequence[Section],
    styles: Mapping[str, Style] | None = None,
) -> str:
    """The page as text, the same for the same arguments.

    Args:
        title: what the page answers. about: of what, in a sentence or two.
        answer: paragraphs, before anything else.
        sections: in their order.
        styles: how the rows of tables are drawn in figures, by their names: their colour is shown beside the name.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["part"] = lambda part, kind: type(part).__name__ == kind
    page = environment.get_template("page.html").render(
        version=__version__, title=title, about=about, answer=answer, sections=sections, styles=styles or {}
    )
    # What tells a page that nobody changed from one that is somebody's work.
    return f"{page}\n<!-- posembed {hashlib.sha256(as_bytes(page)).hexdigest()} -->\n"


def write_page(path: Path, page: str, *, option: str) -> Path:
    """Write what ``render_page`` gave, whole or not at all, over an earlier page at most. Returns its path.

    Args:
        option: the name by which a person chose the path.

    Raises:
        ArgumentError: it cannot be written there.
    """
    try:
        write_whole(path, as_bytes(page), refusal=why_not_replaced)
    except OSError as error:
        raise unwritten(path, reason(error), option) from error
    return path


def refuse_page(path: Path, *, option: str) -> None:
    """Raise the ArgumentError of ``write_page`` where it is known before a page is made: after hours, perhaps."""
    why = why_not_replaced(path) if path.exists() else None
    if path.is_symlink():
        why = "it is a link"
    elif not path.parent.is_dir():
        why = f"the folder {path.parent} does not exist"
    if why is not None:
        raise unwritten(path, why, option)


def unwritten(path: Path, why: str, option: str) -> ArgumentError:
    return ArgumentError(f"the page {path} cannot be written: {why}; name another file with {option}")


def why_not_replaced(path: Path) -> str | None:
    """Why a page may not be written over this file; None if it is an earlier page as posembed wrote it."""
    if not path.is_file():
        return "it is a folder" if path.is_dir() else "it is no file"
    try:
        page = path.read_bytes() if path.stat().st_size < LARGEST_PAGE else b""
    except OSError:
        return "the file there cannot be read"
    signed = re.fullmatch(rb"(.*)\n<!-- posembed (\w{64}) -->\n", page, flags=re.DOTALL)
    if signed is None or hashlib.sha256(signed[1]).hexdigest() != signed[2].decode():
        return "the file there is not a page of posembed, or was changed since"
    return None
