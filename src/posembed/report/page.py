"""What all pages share: an answer, then sections of figures and tables, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from posembed._version import __version__
from posembed.errors import ArgumentError
from posembed.lab.runs.results import write_whole
from posembed.report.drawing import Style, svg_for_page


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
    return environment.get_template("page.html").render(
        version=__version__, title=title, about=about, answer=answer, sections=sections, styles=styles or {}
    )


def write_page(path: Path, page: str, *, option: str) -> Path:
    """Write a page whole or not at all; returns its path. option: the name by which a person chose the path.

    Raises:
        ArgumentError: it cannot be written there.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        write_whole(path, page)
    except OSError as error:
        raise ArgumentError(
            f"the page {path} cannot be written: {error.strerror}; name another file with {option}"
        ) from error
    return path
