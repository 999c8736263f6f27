"""One HTML page about a folder of algorithmic runs: the answer, the curve, the numbers, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posembed.lab.questions.algorithms import SOLVED, AlgorithmResult, AlgorithmSummary, summarise_algorithm
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.algorithms.problems import PROBLEMS
from posembed.lab.tasks.algorithms.spec import AlgorithmSpec
from posembed.lab.tasks.algorithms.task import Algorithm, Solved
from posembed.report.algorithms.curve import algorithm_figure
from posembed.report.algorithms.tables import raw_tables, result_tables
from posembed.report.algorithms.words import answer
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.learned.tables import table_pictures
from posembed.report.page import Section, picture, render_page, write_page
from posembed.report.words import model_size, runs_of_each


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare tasks addition`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.

    Raises:
        ArgumentError: no run is finished, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    runs = RunFolder(folder, Algorithm)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs, runs.results())
    return write_page(runs.path / "report.html" if out is None else Path(out), page, option="--out")


def render(runs: RunFolder[AlgorithmSpec, Solved], results: Sequence[AlgorithmResult]) -> str:
    """The page as text: the same for the same results and tables."""
    summary = summarise_algorithm(results)
    spec = results[0].spec
    sentences = answer(summary)
    sizes = picture(algorithm_figure(summary), name="sizes", described=" ".join(sentences), caption=_caption(summary))
    sections = [
        Section("", (sizes,)),
        Section("The numbers", tuple(result_tables(summary)), says=_intervals(summary)),
        Section("What the tables learned", tuple(table_pictures(runs, results))),
        training_section(results, of="Of the answers' tokens alone."),
        evidence_section(results, raw_tables(results)),
    ]
    return render_page(
        title=f"Which position encoding solves {spec.problem} past {spec.train_size:,} {summary.unit}?",
        about=_about(spec, summary),
        answer=sentences,
        sections=[section for section in sections if section.parts],
        styles=styles([row.encoding for row in summary.rows]),
    )


def _about(spec: AlgorithmSpec, summary: AlgorithmSummary) -> str:
    return (
        f"The same small Transformer decoder ({model_size(spec)}), trained for {spec.steps:,} steps on problems "
        f"of 1 to {spec.train_size:,} {summary.unit}: {PROBLEMS[spec.problem].line}. Then tested with up to "
        f"{max(spec.test_sizes):,}. Only positions differ. {runs_of_each(summary.rows).capitalize()}."
    )


def _caption(summary: AlgorithmSummary) -> str:
    several = any(len(row.seeds) > 1 for row in summary.rows)
    return (
        f"Shaded at the left: the sizes trained on. A size is solved above the dotted line, {100 * SOLVED:.0f}%. "
        + ("Shaded bands: 95% intervals over seeds." if several else "One run of each, so no interval is known.")
    )


def _intervals(summary: AlgorithmSummary) -> str:
    if all(len(row.seeds) < 2 for row in summary.rows):
        return "There is a single run of each encoding, so no interval is known; small differences may be chance."
    return "Below each mean stands its 95% interval over seeds (Student's t), cut at 0 and 100."
