"""Pages about run folders: one template for all questions, and a module for what is special about some of them.

The question names that module (``Question.page``).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.found import Found, Row
from posembed.lab.question import Compared, Question
from posembed.lab.questions import question_of
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.measure.frame import Run
from posembed.plots.style import styles
from posembed.report import answers
from posembed.report.evidence import run_evidence, training_section
from posembed.report.learned import HOW_HEADS_READ, attention_pictures, table_pictures
from posembed.report.page import Cell, Column, Picture, Section, Table, render_page, table_of, write_page
from posembed.report.words import PAIRED, capitalised, certainty

NO_POSITION = "no position"
MOST_COLUMNS = 12
"""The largest number of columns of a table of all values."""


class QuestionPage:
    """The page of a question that trains models. Subclasses add what the metrics do not give, and must not claim more
    than the intervals allow."""

    how_combined = PAIRED
    """How values of several runs are combined."""

    def __init__(self, question: Any) -> None:
        self.question = question

    def columns(self, found: Found) -> Iterable[Column]:
        """Returns columns of the main table that the metrics do not give."""

        def column(head: str, of: Mapping[str, str]) -> Column:
            return Cell(head, kind="words", rank=1), lambda row: of[row.name] if row.seeds else answers.FAILED

        return [column(*each) for each in self.question.columns(found).items()]

    def remarks(self, found: Found) -> Iterable[str]:
        """Returns sentences of the answer that the metrics do not give."""
        return self.question.remarks(found)

    def extra_tables(self, found: Found) -> Iterable[Table]:
        """Returns tables that the metrics do not give."""
        return ()

    def learned(self, folder: RunFolder, results: Sequence[RunResult]) -> Iterable[Picture]:
        return table_pictures(folder, results)

    def main_tables(self, summary: Any) -> list[Table]:
        """Returns the tables that the terminal also shows."""
        return [answers.main_table(summary, self.columns(summary))]

    def notes(self, summary: Any) -> list[str]:
        """Returns notes that explain the main table on a terminal."""
        return []

    def answer(self, summary: Any) -> list[str]:
        """Returns the answer in paragraphs; the last gives the number of runs and the kind of intervals."""
        paragraphs = [*self.paragraphs(summary), certainty(summary.rows, summary.of_each, self.how_combined)]
        return [paragraph.strip() for paragraph in paragraphs if paragraph.strip()]

    def paragraphs(self, summary: Any) -> list[str]:
        return answers.paragraphs(summary, self.remarks(summary))

    def tables(self, summary: Any) -> list[Table]:
        """Returns the other tables of the page."""
        names = summary.best_first(summary.headline, summary.x)
        counted = summary.question.counted(summary)
        return [
            *answers.tables(summary),
            *self.extra_tables(summary),
            trained_table([summary.row(name) for name in names]),
            *(answers.counts_table(title, counts) for title, counts in counted.items()),
        ]

    def figures(self, summary: Any) -> Iterable[Picture]:
        return answers.figures(summary, " ".join(self.answer(summary)))

    def values(self, summary: Found) -> Iterator[Table]:
        """Yields tables of every value of every run: one row per run or, if there are many x, one row per x."""
        frame, known = summary.frame, {metric.name: metric for metric in self.question.metrics}
        keys = dict.fromkeys(key for run in frame.runs for key in run.found)
        titles: dict[str, dict[tuple[str, int | None], str]] = {}
        for name, x in sorted(keys, key=lambda key: key[1] or 0):
            metric = known.get(name)
            title = f"{capitalised(name)}{', as a loss in nats' if metric and metric.kind == 'log' else ''}"
            if x is None:
                title = (metric and metric.table) or "Values"
            titles.setdefault(title, {})[name, x] = name if x is None else f"{x:,}"

        def cell(run: Run, key: tuple[str, int | None]) -> Cell:
            value = run.value(*key)
            missing = known[key[0]].missing if key[0] in known else NO_POSITION
            return Cell(missing, kind="muted") if value is None else Cell(f"{value:.5f}")

        def of_run(run: Run) -> Column:
            return f"{run.name}, seed {run.seed}", lambda key: cell(run, key)

        def of_key(key: tuple[str, int | None], head: str) -> Column:
            return head, lambda run: cell(run, key)

        for title, heads in titles.items():
            if len(heads) <= MOST_COLUMNS:
                columns = [of_key(key, head) for key, head in heads.items()]
                yield table_of(frame.runs, title, "", *columns, first="run", name=lambda r: f"{r.name}, seed {r.seed}")
            else:
                for runs in (frame.runs[i : i + MOST_COLUMNS] for i in range(0, len(frame.runs), MOST_COLUMNS)):
                    yield table_of(heads, title, "", *map(of_run, runs), first="position", name=heads.__getitem__)

    def summary(self, folder: Path, reference: str | None) -> Any:
        """Reads the results of a folder, with the reference of its last command if none is given."""
        question, runs = self.question, RunFolder(folder, self.question.Spec)
        reference = reference and question.canonical(reference)
        if reference is None:
            reading = runs.reading(question.ReadingType)
        elif question.ReadingType is Compared:
            reading = Compared(reference=reference)  # the only field; the folder's own reading may be damaged
        elif issubclass(question.ReadingType, Compared):
            reading = dataclasses.replace(runs.reading(question.ReadingType), reference=reference)
        else:
            raise no_reference(folder, question)
        results = runs.results()
        kept = getattr(reading, "reference", None)
        if results and kept not in (None, reference, *(result.spec.compared for result in results)):
            raise RunFolderError(
                f"{runs.reading_file} names the reference {kept!r}, which was not run; use --reference"
            )
        return question.summarise(results, reading, runs)

    def sections(self, folder: Path, summary: Any) -> list[Section]:
        """Returns the sections after the numbers."""
        question, runs, results = self.question, summary.folder, summary.results
        shown = question.shown(results)
        return [
            Section("What the tables learned", tuple(self.learned(runs, shown)), says=question.tables_note),
            Section("Where the heads look", tuple(attention_pictures(runs, shown)), says=HOW_HEADS_READ),
            training_section(results, unit=question.loss_unit),
            run_evidence(results, [*self.values(summary)]),
        ]

    def from_folder(self, folder: Path, reference: str | None = None) -> str:
        """Returns the page about a folder as text. Equal results give equal text."""
        summary = self.summary(folder, reference)
        tables = [*self.main_tables(summary), *self.tables(summary)]
        return render_page(
            title=self.question.asks,
            about=summary.about(),
            answer=self.answer(summary),
            sections=[
                Section("", tuple(self.figures(summary))),
                Section("The numbers", tuple(table for table in tables if table.rows)),
                *self.sections(folder, summary),
            ],
            styles=styles([row.name for row in summary.rows]),
        )


def page_of(question: Question) -> QuestionPage:
    if question.page is None:
        return QuestionPage(question)
    page: QuestionPage = importlib.import_module(f"posembed.report.questions.{question.page}").Page(question)
    return page


def write_report(folder: str | Path, out: str | Path | None = None, *, reference: str | None = None) -> Path:
    """Writes the results of a run folder as one self-contained HTML file and returns its path. The write is atomic.

    Args:
        folder: a folder written by ``posembed compare``. Runs may still be missing.
        out: the file to write. Default: report.html in the folder.
        reference: the name that the others are compared with. Default: the reference of the last command.

    Raises:
        ArgumentError: no run is finished, no run of the reference is finished, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    path = Path(folder)
    page = page_of(question_of(path)).from_folder(path, reference)
    return write_page(path / "report.html" if out is None else Path(out), page, option="--out")


def no_reference(folder: Path, question: Question) -> ArgumentError:
    return ArgumentError(
        f"--reference is for questions that compare with a reference; {folder} holds runs of {question.name}"
    )


def trained_table(rows: Sequence[Row]) -> Table:
    """Returns a table of each name's parameters and number of runs."""

    def runs(row: Row) -> Cell:
        return Cell(f"{row.succeeded}", note=f"{len(row.failures)} failed" if row.failures else "")

    window: Column = ("window", lambda row: "none" if row.window is None else f"{row.window:,}")
    return table_of(
        rows,
        "What was trained",
        "The models differ only in what is compared.",
        ("parameters", lambda row: f"{row.parameters:,}"),
        ("position parameters", lambda row: f"{row.position_parameters:,}"),
        ("runs", runs),
        *[window] * any(row.window is not None for row in rows),
    )
