"""One HTML page about a folder of algorithmic runs: the answer, the curve, the numbers, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from posembed._version import __version__
from posembed.errors import RunFolderError
from posembed.lab.questions.algorithms import SOLVED, AlgorithmResult, AlgorithmSummary, summarise_algorithm
from posembed.lab.results import RunFolder, write_whole
from posembed.lab.tasks.algorithms.problems import PROBLEMS
from posembed.lab.tasks.algorithms.spec import AlgorithmSpec
from posembed.lab.tasks.algorithms.task import Algorithm
from posembed.report.algorithm_curve import algorithm_figure
from posembed.report.algorithm_tables import raw_tables, result_tables
from posembed.report.algorithm_words import answer, runs_of_each
from posembed.report.drawing import styles, svg_for_page
from posembed.report.training_curve import training_figure


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare tasks addition`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.

    Raises:
        ArgumentError: no run is finished.
        RunFolderError: the folder cannot be read, or the page not written.
    """
    runs = RunFolder(folder, Algorithm)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs.results())
    path = runs.path / "report.html" if out is None else Path(out)
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        write_whole(path, page)
    except OSError as error:
        raise RunFolderError(
            f"the page {path} cannot be written: {error.strerror}; name another file with --out"
        ) from error
    return path


def render(results: Sequence[AlgorithmResult]) -> str:
    """The page as text: the same for the same results."""
    summary = summarise_algorithm(results)
    spec = results[0].spec
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sentences = answer(summary)
    return environment.get_template("page.html").render(
        version=__version__,
        title=f"Which position encoding solves {spec.problem} past {spec.train_size:,} {summary.unit}?",
        about=_about(spec, summary),
        answer=sentences,
        length_figure=_svg(algorithm_figure(summary), "sizes", " ".join(sentences)),
        length_caption=_caption(summary),
        intervals=_intervals(summary),
        styles=styles([row.encoding for row in summary.rows]),
        tables=result_tables(summary),
        pictures=[],
        training_figure=_svg(
            training_figure(results), "training", "Training loss against the step, a line a run."
        ),
        training_caption="A line a run; names stand at the mean of the last losses.",
        settings=[(name.replace("_", " "), _plain(value)) for name, value in spec.shared_settings().items()],
        environment=_environments(results),
        raw_tables=raw_tables(results),
    )


def _svg(figure: Figure, name: str, described: str) -> Markup:
    return Markup(svg_for_page(figure, name=name, described=escape(described)))


def _about(spec: AlgorithmSpec, summary: AlgorithmSummary) -> str:
    return (
        f"The same small Transformer decoder ({spec.layers} layers, width {spec.width}, {spec.heads} heads) learns to "
        f"{PROBLEMS[spec.problem].line} on problems of 1 to {spec.train_size:,} {summary.unit}, for {spec.steps:,} "
        f"steps, and is then given up to {max(spec.test_sizes):,}. Only positions differ. "
        f"{runs_of_each(summary).capitalize()}."
    )


def _caption(summary: AlgorithmSummary) -> str:
    several = any(len(row.seeds) > 1 for row in summary.rows)
    return (
        f"Shaded at the left: the sizes trained on. A size is solved above the dotted line, {100 * SOLVED:.0f} %. "
        + ("Shaded bands: 95% intervals over seeds." if several else "One run of each, so no interval is known.")
    )


def _intervals(summary: AlgorithmSummary) -> str:
    if all(len(row.seeds) < 2 for row in summary.rows):
        return "There is a single run of each encoding, so no interval is known; small differences may be chance."
    return "Below each mean stands its 95% interval over seeds (Student's t), cut at 0 and 100."


def _environments(results: Sequence[AlgorithmResult]) -> list[tuple[str, str]]:
    """What the runs were made with; where they differ, all of it."""
    names = dict.fromkeys(name for result in results for name in result.environment)
    return [
        (name, "; ".join(dict.fromkeys(r.environment[name] for r in results if name in r.environment)))
        for name in names
    ]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
