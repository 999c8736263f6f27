"""One HTML page about one run folder: the answer, the curve, the numbers, the pictures, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posembed.lab.measure import Measurements
from posembed.lab.questions.lengths import LengthResult, LengthSummary, summarise_lengths
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.language import LanguageModelling, LanguageSpec
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.learned.attention_by_distance import attention_section
from posembed.report.learned.tables import table_pictures
from posembed.report.lengths.answer import answer
from posembed.report.lengths.curve import is_cut, length_figure
from posembed.report.lengths.tables import raw_tables, result_tables
from posembed.report.page import Section, picture, render_page, write_page
from posembed.report.words import listed, model_size, runs_of_each


def write_report(folder: str | Path, out: str | Path | None = None, *, reference: str | None = None) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare lengths`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.
        reference: the encoding that the others are held against; None takes ALiBi, if it was run.

    Raises:
        ArgumentError: no run is finished, or none of the reference, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    runs = RunFolder(folder, LanguageModelling)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs, runs.results(), reference=reference)
    return write_page(runs.path / "report.html" if out is None else Path(out), page, option="--out")


def render(
    runs: RunFolder[LanguageSpec, Measurements], results: Sequence[LengthResult], *, reference: str | None
) -> str:
    """The page as text: the same for the same results and tables."""
    summary = summarise_lengths(results, reference=reference)
    spec = results[0].spec
    sentences = answer(summary)
    lengths = picture(
        length_figure(summary), name="lengths", described=" ".join(sentences), caption=_length_caption(summary)
    )
    sections = [
        Section("", (lengths,)),
        Section("The numbers", tuple(result_tables(summary)), says=_intervals(summary)),
        Section("What the tables learned", tuple(table_pictures(runs, results))),
        attention_section(runs, results),
        training_section(results),
        evidence_section(results, raw_tables(results)),
    ]
    return render_page(
        title=f"How far does each position encoding carry past {spec.train_length:,} tokens?",
        about=_about(spec, summary),
        answer=sentences,
        sections=[section for section in sections if section.parts],
        styles=styles([row.encoding for row in summary.rows]),
    )


def _about(spec: LanguageSpec, summary: LengthSummary) -> str:
    unit = "bytes" if spec.tokenizer == "bytes" else f"tokens of {spec.tokenizer}"
    return (
        f"The same small Transformer ({model_size(spec)}), trained on "
        f"{spec.data} for {spec.steps:,} steps on {spec.train_length:,} {unit} at a time, then tested with up to "
        f"{max(spec.test_lengths):,}. Only the position encoding differs. "
        f"{runs_of_each(summary.rows).capitalize()}."
    )


def _length_caption(summary: LengthSummary) -> str:
    several = any(len(row.seeds) > 1 for row in summary.rows)
    sentences = [
        "A flat line holds past the training length; a rising one gets worse.",
        "Shaded: 95% intervals." if several else "One run of each, so no interval is known.",
    ]
    cut = is_cut(summary)
    if cut is not None:
        sentences.append(
            f"The axis ends at {cut:g}; the last value of a line that goes on above it stands at its name."
        )
    failed = [row.encoding for row in summary.rows if not row.seeds]
    if failed:
        sentences.append(f"Not drawn, since training failed: {listed(failed)}.")
    return " ".join(sentences)


def _intervals(summary: LengthSummary) -> str:
    if all(len(row.seeds) < 2 for row in summary.rows):
        return "There is a single run of each encoding, so no interval is known; small differences may be chance."
    return "Below each mean stands its 95% interval over seeds (Student's t); ratios are paired by seed."
