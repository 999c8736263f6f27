"""What is special about ``compare inits``: a published table beside the measurements, and how the rows look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from posembed.lab.found import Found, Row
from posembed.lab.questions.tables import STEPS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.text_specs import LOSS
from posembed.measure.metrics import Metric
from posembed.report.answers import comparison_cell
from posembed.report.learned import compared_picture, measures_picture, tables_of
from posembed.report.page import Cell, Column, Picture, Table, table_of
from posembed.report.questions import QuestionPage
from posembed.report.words import listed, signed

REFERENCE = "normal-0.02"
PUBLISHED: dict[Metric, dict[str, float]] = {
    LOSS: {REFERENCE: 1.45, "normal-0.01": 1.46, "normal-0.05": 1.52, "xavier": 1.46, "sinusoidal": 1.44, "zero": 1.48},
    STEPS: {REFERENCE: 40, "normal-0.01": 42, "normal-0.05": 45, "xavier": 41, "sinusoidal": 38, "zero": 50},
}
"""The published results that many guides to learned positions repeat: the loss, and the epoch of convergence."""


class Page(QuestionPage):
    def remarks(self, found: Found) -> Iterator[str]:
        yield from super().remarks(found)
        names = [name for name in comparable(found) if found.versus(LOSS, name) is not None]
        if not names:
            return
        both = [(metric, words, name) for metric, words in ((LOSS, "loss"), (STEPS, "steps")) for name in names]
        against = [
            f"the {words} of {name}" for metric, words, name in both if agrees(found, metric, name) == "disagrees"
        ]
        yield f"Contradictions with a table that many guides repeat: {listed(against) or 'none'}."
        if unconfirmed := [name for name in names if agrees(found, LOSS, name) in ("not significant", "unknown")]:
            yield f"These runs cannot confirm the differences in the loss in that table for {listed(unconfirmed)}."

    def extra_tables(self, found: Found) -> Iterator[Table]:
        """Yields a table of our and the published differences from N(0, 0.02). The losses come from different data."""
        losses, epochs = PUBLISHED.values()

        def loss(row: Row) -> Cell:
            return Cell(f"{losses[row.name]:.2f}", note=signed(losses[row.name] - losses[REFERENCE], 2))

        def epoch(row: Row) -> Cell:
            return Cell(f"{epochs[row.name]}", note=f"{epochs[row.name] / epochs[REFERENCE]:.2f} times")

        def ours(metric: Metric, head: str, verdict: str) -> list[Column]:
            return [
                (head, lambda row: comparison_cell(found.versus(metric, row.name))),
                (Cell(verdict, kind="words"), lambda row: agrees(found, metric, row.name)),
            ]

        yield table_of(
            [found.row(name) for name in comparable(found)],
            "Compared with a table that many guides repeat",
            "That table gives the final loss and the epoch at which training had converged, but no data, model, seeds "
            "or intervals. Only differences from N(0, 0.02) can be compared. It gives ratios of epochs; this page "
            "gives ratios of steps to a training loss.",
            *(("their loss", loss), *ours(LOSS, "our difference", "on the loss")),
            *(("their epoch", epoch), *ours(STEPS, "our ratio of steps", "on the steps")),
            first="initial values",
        )

    def learned(self, folder: RunFolder, results: Sequence[RunResult]) -> Iterable[Picture]:
        if tables := {name: rows for name, (_, rows) in tables_of(folder, results).items()}:
            for when, step in {"before": min, "after": max}.items():
                compared = {name: rows[step(rows)] for name, rows in tables.items()}
                title, caption = f"The tables {when} training", f"Each table {when} training, in its first run."
                yield compared_picture(compared, when, title=title, caption=caption)
            yield measures_picture(tables)


def comparable(found: Found) -> list[str]:
    """Returns the names that are also in the published table; none if our reference is not REFERENCE."""
    names = [name for name in found.names if name in PUBLISHED[LOSS] and found.row(name).seeds]
    return names if found.reference == REFERENCE else []


def agrees(found: Found, metric: Metric, name: str) -> str:
    """Returns, in words, whether our comparison has the same sign as the published one."""
    each, theirs = found.versus(metric, name), PUBLISHED[metric]
    if each is None:
        return "the reference" if name == REFERENCE else "unknown"
    if each.verdict in ("not significant", "unknown"):
        return each.verdict
    return "agrees" if (each.verdict == "better") == (theirs[name] < theirs[REFERENCE]) else "disagrees"
