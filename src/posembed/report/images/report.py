"""One HTML page about images: the answer, accuracy by grid, the numbers, the tables' pictures, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posembed.lab.encodings import ENCODINGS
from posembed.lab.questions.images import ImageResult, ImageRow, ImageSummary, summarise_images
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.images import ImageClassification, ImageSpec, Recognised
from posembed.report.accuracy_words import percent, points, share_interval, wider
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.images.curve import image_figure
from posembed.report.images.words import answer, are_twins, best_first
from posembed.report.learned.tables import table_pictures
from posembed.report.page import Cell, Row, Section, Table, picture, render_page, write_page
from posembed.report.words import interval, model_size, runs_of_each


def write_report(folder: str | Path, out: str | Path | None = None, *, reference: str | None = None) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare tasks images`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.
        reference: the encoding that the others are held against; None takes learned-1d, if it was run.

    Raises:
        ArgumentError: no run is finished, or none of the reference, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    runs = RunFolder(folder, ImageClassification)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs, runs.results(), reference=reference)
    return write_page(runs.path / "report.html" if out is None else Path(out), page, option="--out")


def render(runs: RunFolder[ImageSpec, Recognised], results: Sequence[ImageResult], *, reference: str | None) -> str:
    """The page as text: the same for the same results and tables."""
    summary = summarise_images(results, reference=reference)
    spec = results[0].spec
    sentences = answer(summary)
    drawn = styles([row.encoding for row in summary.rows])
    figure = image_figure(summary, drawn)
    first = picture(figure, name="accuracy", described=" ".join(sentences), caption=_caption(summary))
    sections = [
        Section("", (first,)),
        Section("The numbers", tuple(result_tables(summary)), says=_intervals(summary)),
        Section(
            "What the tables learned",
            tuple(table_pictures(runs, results)),
            says="Row 0 is that of the token in front, if there is one; then patches row by row.",
        ),
        training_section(results, unit="an image"),
        evidence_section(results, raw_tables(results)),
    ]
    return render_page(
        title="Which positions do images want, and which still serve on another grid?",
        about=_about(spec, summary),
        answer=sentences,
        sections=[section for section in sections if section.parts],
        styles=drawn,
    )


def result_tables(summary: ImageSummary) -> list[Table]:
    """Accuracies, their differences, and what each encoding is and becomes."""
    rows = best_first(summary)
    accuracies = Table(
        "Held-out images told, percent",
        "By the side of the images in pixels.",
        _sizes(summary),
        tuple(Row(row.encoding, _accuracies(row, summary)) for row in rows),
        first="encoding",
    )
    differences = Table(
        f"Less {summary.reference}'s, points of percent",
        "Paired by seed and by image. Below each difference stands the wider of its 95% intervals over seeds and "
        "over images; it is green or red where neither holds 0, so that it can be told from chance.",
        _sizes(summary),
        tuple(Row(row.encoding, _differences(row, summary)) for row in rows if row.difference),
        first="encoding",
    )
    encodings = Table(
        "The encodings",
        "",
        (
            Cell("parameters"),
            Cell("of positions"),
            Cell("what it is", kind="words"),
            Cell("on another grid", kind="words"),
        ),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(f"{row.parameters:,}"),
                    Cell(f"{row.position_parameters:,}"),
                    Cell(ENCODINGS[row.encoding].line, kind="words"),
                    Cell(ENCODINGS[row.encoding].regridded, kind="words"),
                ),
            )
            for row in rows
        ),
        first="encoding",
    )
    return [table for table in (accuracies, differences, encodings) if table.rows]


def raw_tables(results: Sequence[ImageResult]) -> list[Table]:
    """Every value of every run, as it was measured."""
    measured = [(r.spec.name, r.measurements) for r in results if r.measurements is not None]
    heads = tuple(Cell(f"{size:,}") for size in results[0].spec.test_sizes)
    right = tuple(Row(name, tuple(Cell(f"{told.count('1'):,}") for told in of.right.values())) for name, of in measured)
    loss = tuple(Row(name, tuple(Cell(f"{value:.5f}") for value in of.loss.values())) for name, of in measured)
    return [
        Table("Held-out images told", "By the side of the images.", heads, right, first="run"),
        Table("Loss on held-out images", "In nats.", heads, loss, first="run"),
    ]


def _sizes(summary: ImageSummary) -> tuple[Cell, ...]:
    def note(size: int) -> str:
        side = size // summary.patch
        return f"{side} x {side} patches{', trained' if size == summary.train_size else ''}"

    return tuple(Cell(f"{size:,}", note=note(size)) for size in summary.test_sizes)


def _accuracies(row: ImageRow, summary: ImageSummary) -> tuple[Cell, ...]:
    if not row.accuracy:
        return (Cell("failed", kind="bad"), *[Cell("")] * (len(summary.test_sizes) - 1))
    return tuple(Cell(percent(of.mean), note=share_interval(of)) for of in row.accuracy.values())


def _differences(row: ImageRow, summary: ImageSummary) -> tuple[Cell, ...]:
    cells = []
    for size in summary.test_sizes:
        of = row.difference[size]
        if are_twins(row, summary, size):
            cells.append(Cell("the same", kind="muted"))
            continue
        kind = ("good" if of.over_seeds.mean > 0 else "bad") if of.told else ""
        cells.append(Cell(points(of.over_seeds.mean), note=interval(wider(of), points), kind=kind))
    return tuple(cells)


def _about(spec: ImageSpec, summary: ImageSummary) -> str:
    side = spec.train_size // spec.patch
    return (
        f"A small ViT ({model_size(spec)}), trained for {spec.steps:,} "
        f"steps of {spec.batch} images of {spec.data}, {spec.train_size} x {spec.train_size} pixels in {side} x "
        f"{side} patches of {spec.patch} x {spec.patch}. Only positions differ. Tested on {summary.examples:,} "
        "held-out images, at that size and drawn at others (bilinearly): patches keep their size in pixels, so "
        f"that there are more or fewer of them. {runs_of_each(summary.rows).capitalize()}."
    )


def _caption(summary: ImageSummary) -> str:
    several = any(len(row.seeds) > 1 for row in summary.rows)
    failed = [row.encoding for row in summary.rows if not row.accuracy]
    return (
        "The dotted line: the size trained on. Away from it tables are resized to the new grid, and nothing "
        f"is trained again. {'Bars: 95% intervals over seeds.' if several else 'One run of each, no interval.'}"
        + (f" Not drawn, since training failed: {', '.join(failed)}." if failed else "")
    )


def _intervals(summary: ImageSummary) -> str:
    if all(len(row.seeds) < 2 for row in summary.rows):
        return "There is a single run of each encoding, so no interval over seeds is known."
    return "Below each mean stands its 95% interval over seeds (Student's t)."
