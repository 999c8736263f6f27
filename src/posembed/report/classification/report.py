"""One HTML page about classified texts: the answer, the differences, the numbers, the pictures, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posembed.lab.questions.classification import (
    UNEVEN,
    ClassificationResult,
    ClassificationRow,
    ClassificationSummary,
    summarise_classification,
)
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.classification import Classification, ClassificationSpec, Classified
from posembed.report.accuracy_words import percent, points, share_interval
from posembed.report.classification.words import answer, best_first
from posembed.report.difference_figure import difference_figure
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.learned.tables import table_pictures
from posembed.report.page import Cell, Row, Section, Table, picture, render_page, write_page
from posembed.report.words import interval, model_size, runs_of_each
from posembed.statistics import Estimate


def write_report(folder: str | Path, out: str | Path | None = None, *, reference: str | None = None) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare tasks text`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.
        reference: the encoding that the others are held against; None takes the sinusoids, if they were run.

    Raises:
        ArgumentError: no run is finished, or none of the reference, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    runs = RunFolder(folder, Classification)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs, runs.results(), reference=reference)
    return write_page(runs.path / "report.html" if out is None else Path(out), page, option="--out")


def render(
    runs: RunFolder[ClassificationSpec, Classified],
    results: Sequence[ClassificationResult],
    *,
    reference: str | None,
) -> str:
    """The page as text: the same for the same results and tables."""
    summary = summarise_classification(results, reference=reference)
    spec = results[0].spec
    sentences = answer(summary)
    drawn = styles([row.encoding for row in summary.rows])
    differences = {row.encoding: row.difference for row in summary.rows if row.difference is not None}
    figures = []
    if differences:
        figure = difference_figure(differences, drawn, summary.reference)
        figures.append(picture(figure, name="differences", described=" ".join(sentences), caption=_caption(summary)))
    sections = [
        Section("", tuple(figures)),
        Section("The numbers", tuple(result_tables(summary)), says=_intervals(summary)),
        Section("What the tables learned", tuple(table_pictures(runs, results))),
        training_section(results, unit="an example"),
        evidence_section(results, raw_tables(results)),
    ]
    return render_page(
        title="Does the position encoding matter where texts are classified?",
        about=_about(spec, summary),
        answer=sentences,
        sections=[section for section in sections if section.parts],
        styles=drawn,
    )


def result_tables(summary: ClassificationSummary) -> list[Table]:
    """Accuracy and its difference, macro F1 where classes are uneven, and the classes."""
    heads = [
        Cell("accuracy, %"),
        Cell(f"less {summary.reference}'s", note="95% interval over seeds"),
        Cell("95% interval over documents"),
    ]
    heads += [Cell("told?", kind="words")]
    heads += [Cell("macro F1, %")] if summary.uneven else []
    heads += [Cell("parameters"), Cell("of positions")]
    numbers = Table(
        "Held-out examples told",
        "A difference is told from chance where neither of its intervals holds 0."
        + (" Macro F1 counts every class alike, however small." if summary.uneven else ""),
        tuple(heads),
        tuple(Row(row.encoding, _cells(row, uneven=summary.uneven)) for row in best_first(summary)),
        first="encoding",
    )
    classes = Table(
        "The classes",
        "",
        (Cell("held-out examples"), Cell("share, %")),
        tuple(
            Row(name, (Cell(f"{count:,}"), Cell(percent(count / summary.examples))))
            for name, count in sorted(summary.classes.items(), key=lambda item: -item[1])
        ),
        first="class",
    )
    return [numbers, *([classes] if summary.classes else [])]


def raw_tables(results: Sequence[ClassificationResult]) -> list[Table]:
    """Every value of every run, as it was measured."""
    rows = []
    for result in results:
        if (m := result.measurements) is not None:
            right = sum(m.right)
            values = (
                f"{right:,}",
                f"{100 * right / sum(m.examples):.2f}",
                f"{100 * m.macro_f1:.2f}",
                f"{m.loss:.5f}",
            )
            rows.append(Row(result.spec.name, tuple(map(Cell, values))))
    heads = ("examples told", "accuracy, %", "macro F1, %", "loss, nats")
    return [Table("Held-out examples", "", tuple(map(Cell, heads)), tuple(rows), first="run")]


def _cells(row: ClassificationRow, *, uneven: bool) -> tuple[Cell, ...]:
    told = Cell("", kind="words")
    if (difference := row.difference) is not None and row.accuracy is not None:
        kind = ("good" if difference.over_seeds.mean > 0 else "bad") if difference.told else "muted"
        told = Cell("better" if kind == "good" else "worse" if kind == "bad" else "no", kind=kind)
    cells = [
        _cell(row.accuracy),
        *(
            (Cell(""), Cell(""))
            if difference is None
            else (
                Cell(points(difference.over_seeds.mean), note=interval(difference.over_seeds, points)),
                Cell(interval(difference.over_documents, points), kind="muted"),
            )
        ),
        told,
    ]
    if uneven:
        cells.append(_cell(row.macro_f1))
    return (*cells, Cell(f"{row.parameters:,}"), Cell(f"{row.position_parameters:,}"))


def _cell(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("failed", kind="bad")
    return Cell(percent(estimate.mean), note=share_interval(estimate))


def _about(spec: ClassificationSpec, summary: ClassificationSummary) -> str:
    read = "a token in front" if spec.pooling == "cls" else "the mean over its tokens"
    return (
        f"The same small Transformer encoder ({model_size(spec)}), "
        f"trained on {spec.data} for {spec.steps:,} steps of {spec.batch} texts of up to {spec.train_length:,} "
        f"tokens ({spec.tokenizer}), the class read from {read}. Tested on {summary.examples:,} examples of "
        f"{summary.documents:,} documents that it never saw. Only the position encoding differs. "
        f"{runs_of_each(summary.rows).capitalize()}."
    )


def _caption(summary: ClassificationSummary) -> str:
    return (
        f"The line at 0 is {summary.reference}. Thick: the 95% interval over seeds, paired by seed (none from a "
        "single run). Thin: over the held-out documents. Where either of them crosses the line, the difference "
        "cannot be told from chance."
    )


def _intervals(summary: ClassificationSummary) -> str:
    uneven = (
        f" The largest class has more than {UNEVEN:g} times the examples of the smallest." if summary.uneven else ""
    )
    if all(len(row.seeds) < 2 for row in summary.rows):
        return f"There is a single run of each encoding, so no interval over seeds is known.{uneven}"
    return f"Below each mean stands its 95% interval over seeds (Student's t).{uneven}"
