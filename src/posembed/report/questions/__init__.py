"""Pages about run folders: one module per question, and what they share.

A page is found by the name that its question gives (``Question.page``). It turns a summary into an answer, tables and
figures; everything below them is the same for every question.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from posembed.errors import ArgumentError
from posembed.lab.question import Compared, Question, SummaryT
from posembed.lab.question import Row as SummaryRow
from posembed.lab.questions import question_of
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.report.drawing import styles
from posembed.report.evidence import evidence_section, training_section
from posembed.report.learned.attention_by_distance import attention_section
from posembed.report.learned.tables import table_pictures
from posembed.report.page import Cell, Column, Picture, Row, Section, Table, render_page, table_of, write_page
from posembed.report.words import interval, number, repeated
from posembed.statistics import INTERVAL, Estimate

AnyT = TypeVar("AnyT")
NO_POSITION = "no position"


class FolderPage(ABC, Generic[AnyT]):
    """The page of one question."""

    @abstractmethod
    def answer(self, summary: AnyT) -> list[str]:
        """Returns the answer in paragraphs. It claims no more than the intervals allow."""

    @abstractmethod
    def main_tables(self, summary: AnyT) -> list[Table]:
        """Returns the tables that the terminal shows too, best first."""

    @abstractmethod
    def notes(self, summary: AnyT) -> list[str]:
        """Returns what a reader of the terminal must know to read the tables."""

    @abstractmethod
    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        """Returns the page about a folder as text, the same for the same results."""


class QuestionPage(FolderPage[SummaryT], Generic[SummaryT]):
    """The page of a question that trains models."""

    first = "encoding"
    """The head above the names."""
    of_each = "encoding"
    """What the runs are counted by: "3 runs per encoding"."""
    loss_unit = "per token"
    """What a training loss is the mean of."""
    loss_note = ""
    tables_note = ""
    """A sentence below the heading of the learned tables."""

    @abstractmethod
    def title(self, summary: SummaryT) -> str: ...

    @abstractmethod
    def about(self, spec: Any, summary: SummaryT) -> str:
        """Returns what was trained and measured, in a sentence or two."""

    @abstractmethod
    def main_table(self, summary: SummaryT) -> Table:
        """Returns the table that the terminal shows too, best first."""

    def main_tables(self, summary: SummaryT) -> list[Table]:
        return [self.main_table(summary)]

    def notes(self, summary: SummaryT) -> list[str]:
        """Returns what a reader of the terminal must know to read the main table."""
        return [seeds_note(summary.rows, self.of_each)] if repeated(summary.rows) else []  # the answer reports one run

    @abstractmethod
    def tables(self, summary: SummaryT) -> list[Table]:
        """Returns the other tables."""

    @abstractmethod
    def figures(self, summary: SummaryT) -> Iterable[Picture]: ...

    @abstractmethod
    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        """Returns every measured value of every run."""

    def learned(self, folder: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterable[Picture]:
        """Returns pictures of what the learned tables became."""
        return table_pictures(folder, results)

    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        if reference is not None and not issubclass(question.ReadingType, Compared):
            raise no_reference(folder, question)
        runs = RunFolder(folder, question.Spec)
        results, summary = question.summarise_folder(runs, reference)
        return self.render(runs, results, summary)

    def render(self, folder: RunFolder[Any], results: Sequence[RunResult[Any, Any]], summary: SummaryT) -> str:
        """Returns the page as text, the same for the same runs."""
        tables = [table for table in (self.main_table(summary), *self.tables(summary)) if table.rows]
        sections = [
            Section("", tuple(self.figures(summary))),
            Section("The numbers", tuple(tables), says=seeds_note(summary.rows, self.of_each)),
            Section("What the tables learned", tuple(self.learned(folder, results)), says=self.tables_note),
            attention_section(folder, results),
            training_section(results, unit=self.loss_unit, note=self.loss_note),
            evidence_section(results, self.values(results)),
        ]
        return render_page(
            title=self.title(summary),
            about=self.about(results[0].spec, summary),
            answer=self.answer(summary),
            sections=sections,
            styles=styles([row.name for row in summary.rows]),
        )


def page_of(question: Question) -> FolderPage[Any]:
    return importlib.import_module(f"posembed.report.questions.{question.page}").PAGE


def write_report(folder: str | Path, out: str | Path | None = None, *, reference: str | None = None) -> Path:
    """Writes the results of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Args:
        folder: a folder written by ``posembed compare``. Runs may still be missing.
        out: the file to write. Default: report.html in the folder.
        reference: the name that the others are compared with. Default: that of the last command.

    Raises:
        ArgumentError: no run is finished, or none of the reference, or the page cannot be written.
        RunFolderError: the folder cannot be read.
    """
    path = Path(folder)
    question = question_of(path)
    page = page_of(question).from_folder(path, question, reference)
    return write_page(path / "report.html" if out is None else Path(out), page, option="--out")


def no_reference(folder: Path, question: Question) -> ArgumentError:
    return ArgumentError(f"--reference is for questions that compare with one; {folder} holds runs of {question.name}")


def estimate_cell(
    estimate: Estimate | None,
    write: Callable[[float], str] = number,
    *,
    missing: str = NO_POSITION,
    write_interval: Callable[[Estimate], str] | None = None,
    kind: str = "",
) -> Cell:
    """Returns a mean with its interval below."""
    if estimate is None:
        return Cell(missing, kind="muted")
    note = interval(estimate, write) if write_interval is None else write_interval(estimate)
    return Cell(write(estimate.value), note=note, kind=kind)


def by_size(
    sizes: Sequence[int],
    values: Callable[[Any], Mapping[int, Estimate | None]],
    write: Callable[[float], str] = number,
    *,
    trained: int | None = None,
    rank: Callable[[int], int] = lambda size: 0,
    note: Callable[[int], str] = lambda size: "",
    failed: str = "",
    **how: Any,
) -> Iterator[Column]:
    """Yields a column per size: the estimate of each row in ``values``; rows without runs have empty cells.

    Args:
        trained: the size that the head marks as that of training.
        note: what stands below a size in the head, before that.
        failed: what rows without runs have in the first column.
        how: see ``estimate_cell``.
    """
    for size in sizes:
        below = ", ".join(text for text in (note(size), "trained" if size == trained else "") if text)

        def cell(row: Any, size: int = size) -> Cell:
            if row.seeds:
                return estimate_cell(values(row)[size], write, **how)
            return Cell(failed, kind="bad") if failed and size == sizes[0] else Cell("")

        yield Cell(f"{size:,}", note=below, rank=rank(size)), cell


def trained_table(rows: Sequence[SummaryRow], first: str, *extra: Column) -> Table:
    """Returns the parameters and the number of runs of each name; ``extra``: more columns."""

    def runs(row: SummaryRow) -> Cell:
        return Cell(f"{len(row.seeds)}", note=f"{len(row.failures)} failed" if row.failures else "")

    return table_of(
        rows,
        "What was trained",
        "The models differ only in their positions.",
        ("parameters", lambda row: f"{row.parameters:,}"),
        ("position parameters", lambda row: f"{row.position_parameters:,}"),
        ("runs", runs),
        *extra,
        first=first,
    )


def values_table(
    title: str,
    says: str,
    results: Sequence[RunResult[Any, Any]],
    read: Callable[[Any], Mapping[Any, Any]],
    write: Callable[[Any], str] = "{:.5f}".format,
) -> Table:
    """Returns a table of the measured values of every run; ``read`` maps measurements to values by column."""
    measured = [(result.spec.name, read(result.measurements)) for result in results if result.measurements is not None]
    head = tuple(Cell(f"{key:,}" if isinstance(key, int) else key) for key in (measured[0][1] if measured else ()))

    def cell(value: Any) -> Cell:
        return Cell(NO_POSITION, kind="muted") if value is None else Cell(write(value))

    rows = tuple(Row(name, tuple(map(cell, values.values()))) for name, values in measured)
    return Table(title, says, head, rows, first="run")


def seeds_note(rows: Sequence[SummaryRow], of_each: str) -> str:
    """Returns how certain the numbers are."""
    if not repeated(rows):
        return f"There is one run per {of_each}, so there are no intervals; small differences may be chance."
    return f"Below each mean is its {INTERVAL} over seeds (Student's t). Differences and ratios are paired by seed."
