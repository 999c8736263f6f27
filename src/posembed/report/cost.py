"""One HTML page about one measurement of cost: the answer, the overheads, the numbers, the evidence."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from posembed._version import __version__
from posembed.errors import RunFolderError
from posembed.lab.cost.results import CostResult, load
from posembed.lab.results import write_whole
from posembed.report.cost_figures import described, growth_figure, overhead_figure
from posembed.report.cost_tables import cost_tables
from posembed.report.cost_words import answer, machine, sizes_in_words
from posembed.report.drawing import styles, svg_for_page


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write cost.json of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Raises:
        RunFolderError: the folder holds no cost.json that can be read, or the page cannot be written.
    """
    page = render(load(Path(folder)))
    path = Path(folder) / "report.html" if out is None else Path(out)
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        write_whole(path, page)
    except OSError as error:
        raise RunFolderError(
            f"the page {path} cannot be written: {error.strerror}; name another file with --out"
        ) from error
    return path


def render(result: CostResult) -> str:
    """The page as text: the same for the same result."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spec, rounds = result.spec, result.attention
    grown = any(row.writes.all for row in result.rows)
    return environment.get_template("cost.html").render(
        version=__version__,
        title="What does each position encoding cost?",
        about=(
            f"Measured on {machine(result)}, at {sizes_in_words(result)}: every encoding alone and in a layer of "
            f"attention, taking turns. Medians of {len(rounds.forward.values)} rounds forward and "
            f"{len(rounds.backward.values)} with backward, with their 95% intervals."
        ),
        answer=answer(result),
        overhead_figure=_svg(overhead_figure, result, "overhead", described(result)),
        growth_figure=_svg(growth_figure, result, "growth", "Time by length, a line an encoding.")
        if grown
        else "",
        tables=cost_tables(result),
        styles=styles([row.encoding for row in result.rows]),
        settings=[(name, _plain(getattr(spec, name))) for name in vars(spec)],
        environment=sorted(result.environment.items()),
    )


def _svg(draw: object, result: CostResult, name: str, text: str) -> Markup:
    assert callable(draw)
    return Markup(svg_for_page(draw(result), name=name, described=escape(text)))


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
