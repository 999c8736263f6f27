"""One HTML page about one folder of runs: which values should a learned table start from?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from posembed.lab.questions.inits import InitResult, InitSummary, summarise_inits
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.initial_values import InitialValues, InitMeasurements, InitSpec
from posembed.report.dots import dots_figure
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.inits.quoted import comparable, disagreements, quoted_table
from posembed.report.inits.tables import raw_tables, result_tables
from posembed.report.inits.words import answer, best_first, loss_number
from posembed.report.learned.along_training import starts_figure
from posembed.report.learned.attention_by_distance import attention_section
from posembed.report.learned.tables import measures_picture, tables_of
from posembed.report.page import Picture, Section, picture, render_page, write_page
from posembed.report.words import model_size, runs_of_each
from posembed.statistics import Estimate


def write_report(
    folder: str | Path, out: str | Path | None = None, *, reference: str | None = None, loss: float | None = None
) -> Path:
    """Write the finished runs of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: as ``posembed compare inits`` makes them. Runs may still be missing.
        out: the file to write; None writes report.html in the folder.
        reference: the start that the others are held against; None takes N(0, .02), if it was run.
        loss: to which training loss steps are counted; None takes the highest at which a run of the seed ended.

    Raises:
        ArgumentError: no run is finished, or none of the reference, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    runs = RunFolder(folder, InitialValues)
    runs.settings()  # raises where the folder is not one of runs
    page = render(runs, runs.results(), reference=reference, loss=loss)
    return write_page(runs.path / "report.html" if out is None else Path(out), page, option="--out")


def render(
    runs: RunFolder[InitSpec, InitMeasurements],
    results: Sequence[InitResult],
    *,
    reference: str | None = None,
    loss: float | None = None,
) -> str:
    """The page as text: the same for the same results and tables."""
    summary = summarise_inits(results, reference=reference, loss=loss)
    tables = result_tables(summary) + ([quoted_table(summary)] if comparable(summary) else [])
    sections = [
        Section("", tuple(_first_figures(summary))),
        Section("The numbers", tuple(tables), says=_intervals(summary)),
        Section("What the tables became", tuple(_table_pictures(runs, results))),
        attention_section(runs, results, compared="init"),
        training_section(results, compared="init"),
        evidence_section(results, raw_tables(results)),
    ]
    spec = results[0].spec
    unit = "bytes" if spec.tokenizer == "bytes" else f"tokens of {spec.tokenizer}"
    return render_page(
        title="Which values should a learned table start from?",
        about=f"The same small Transformer ({model_size(spec)}) with a "
        f"learned table of {spec.train_length:,} rows at its input, trained on {spec.data} for {spec.steps:,} "
        f"steps on {spec.train_length:,} {unit} at a time. Only the table's initial values differ. "
        f"{runs_of_each(summary.rows).capitalize()}.",
        answer=answer(summary) + disagreements(summary),
        sections=[section for section in sections if section.parts],
        styles=styles([row.init for row in summary.rows]),
    )


def _first_figures(summary: InitSummary) -> Iterator[Picture]:
    """Losses, as differences where there is a reference, since every start sees the same text by seed; steps."""
    rows = [row for row in best_first(summary) if row.loss is not None]
    if not rows:
        return
    compared = any(row.versus_reference is not None for row in rows)
    title = f"held-out loss less {summary.reference}'s, nats a token" if compared else "held-out loss, nats a token"
    drawn = [
        (row.init, row.versus_reference if compared else row.loss, loss_number(row.loss.mean))
        for row in rows
        if row.loss is not None
    ]
    figure = dots_figure(
        drawn, title=title, below="left is better" if compared else "", marked=0.0 if compared else None
    )
    several = any(len(row.seeds) > 1 for row in rows)
    how = "A dot a mean, a tick a seed, a bar its 95% interval" if several else "One run of each: no interval is known"
    yield picture(
        figure,
        name="losses",
        described=" ".join(answer(summary)),
        caption=f"{how}. At the right: the loss itself.",
    )
    counted = [(row.init, row.steps, _steps_in_words(row.steps)) for row in rows]
    if summary.loss is not None and any(steps is not None for _, steps, _ in counted):
        yield picture(
            dots_figure(counted, title=f"steps to a training loss of {loss_number(summary.loss)}", below="steps"),
            name="steps",
            described="How many steps each start takes to the same training loss.",
            caption=f"{how}.",
        )


def _steps_in_words(steps: Estimate | None) -> str:
    return "not all" if steps is None else f"{steps.mean:,.0f}"


def _table_pictures(runs: RunFolder[InitSpec, InitMeasurements], results: Sequence[InitResult]) -> Iterator[Picture]:
    tables = {name: rows for name, (_, rows) in tables_of(runs, results, compared="init").items()}
    if not tables:
        return
    yield picture(
        starts_figure({name: (rows[0], rows[max(rows)]) for name, rows in tables.items()}),
        name="starts",
        described="The cosine of every two rows before and after training, for each start.",
        title="How alike the rows are",
        caption="The cosine of every two rows, in the first run of each start. Red is alike, blue is opposite.",
    )
    yield measures_picture(tables)


def _intervals(summary: InitSummary) -> str:
    if all(len(row.seeds) < 2 for row in summary.rows):
        return "There is a single run of each start, so no interval is known; small differences may be chance."
    return "Below each mean stands its 95% interval over seeds (Student's t); differences are paired by seed."
