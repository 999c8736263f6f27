"""What is special about ``compare inits``: a published table beside the measurements, and how the rows look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from posembed.lab.found import Found, Row
from posembed.lab.questions.inits import STEPS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.table_specs import LOSS
from posembed.measure.metrics import Metric
from posembed.report.answers import comparison_cell
from posembed.report.learned import measures_picture, starts_figure, tables_of
from posembed.report.page import Cell, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage
from posembed.report.words import listed, signed


class Published(NamedTuple):
    loss: float
    epoch: int
    """The epoch at which training had converged."""


PUBLISHED = {
    "normal-0.02": Published(1.45, 40),
    "normal-0.01": Published(1.46, 42),
    "normal-0.05": Published(1.52, 45),
    "xavier": Published(1.46, 41),
    "sinusoidal": Published(1.44, 38),
    "zero": Published(1.48, 50),
}
"""The published results that many guides to learned positions repeat."""
REFERENCE = "normal-0.02"
BASE = PUBLISHED[REFERENCE]


class Page(QuestionPage):
    def remarks(self, found: Found) -> Iterator[str]:
        yield from super().remarks(found)
        names = [name for name in comparable(found) if found.versus(LOSS, name) is not None]
        if not names:
            return
        against = [f"the loss of {name}" for name in names if agreement(found, LOSS, name) == "disagrees"]
        against += [f"the steps of {name}" for name in names if agreement(found, STEPS, name) == "disagrees"]
        yield f"Contradictions with a table that many guides repeat: {listed(against) or 'none'}."
        if unconfirmed := [name for name in names if agreement(found, LOSS, name) in ("not significant", "unknown")]:
            yield f"These runs cannot confirm the differences in the loss in that table for {listed(unconfirmed)}."

    def extra_tables(self, found: Found) -> Iterator[Table]:
        """Yields a table of our and the published differences from N(0, 0.02). The losses come from different data."""

        def loss(row: Row) -> Cell:
            theirs = PUBLISHED[row.name]
            return Cell(f"{theirs.loss:.2f}", note=signed(theirs.loss - BASE.loss, 2))

        def epoch(row: Row) -> Cell:
            theirs = PUBLISHED[row.name]
            return Cell(f"{theirs.epoch}", note=f"{theirs.epoch / BASE.epoch:.2f} times")

        yield table_of(
            [found.row(name) for name in comparable(found)],
            "Compared with a table that many guides repeat",
            "That table gives the final loss and the epoch at which training had converged, but no data, model, seeds "
            "or intervals. Only differences from N(0, 0.02) can be compared. It gives ratios of epochs; this page "
            "gives ratios of steps to a training loss.",
            ("their loss", loss),
            ("our difference", lambda row: comparison_cell(found.versus(LOSS, row.name))),
            (Cell("on the loss", kind="words"), lambda row: agreement(found, LOSS, row.name)),
            ("their epoch", epoch),
            ("our ratio of steps", lambda row: comparison_cell(found.versus(STEPS, row.name))),
            (Cell("on the steps", kind="words"), lambda row: agreement(found, STEPS, row.name)),
            first="initial values",
        )

    def learned(self, folder: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterable[Picture]:
        tables = {name: rows for name, (_, rows) in tables_of(folder, results).items()}
        if tables:
            yield picture(
                starts_figure({name: (rows[0], rows[max(rows)]) for name, rows in tables.items()}),
                name="starts",
                described="The cosine of each pair of rows before and after training, for each table.",
                title="How similar the rows are",
                caption="The cosine of each pair of rows, in each table's first run. Red is similar, blue opposite.",
            )
            yield measures_picture(tables)


def comparable(found: Found) -> list[str]:
    """Returns the names that are also in the published table; none if our reference is not REFERENCE."""
    names = [name for name in found.names if name in PUBLISHED and found.row(name).seeds]
    return names if found.reference == REFERENCE else []


def agreement(found: Found, metric: Metric, name: str) -> str:
    """Returns, in words, whether our comparison has the same sign as the published one."""
    each, theirs = found.versus(metric, name), PUBLISHED[name]
    if each is None:
        return "the reference" if name == REFERENCE else "unknown"
    lower = theirs.loss < BASE.loss if metric is LOSS else theirs.epoch < BASE.epoch
    if each.verdict in ("not significant", "unknown"):
        return each.verdict
    return "agrees" if (each.verdict == "better") == lower else "disagrees"
