"""The numbers of the page about initial values, as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posembed.lab.questions.inits import InitResult, InitRow, InitSummary
from posembed.report.inits.words import best_first, loss_number, signed, told
from posembed.report.page import Cell, Row, Table
from posembed.report.words import interval, number
from posembed.statistics import Estimate

VERDICTS = {
    "lower": Cell("better", kind="holds"),
    "higher": Cell("worse", kind="worse"),
    "untold": Cell("cannot be told apart", kind="words"),
    "unknown": Cell("no interval", kind="words"),
}


def result_tables(summary: InitSummary) -> list[Table]:
    """Losses, steps, and what became of the rows; the lowest loss comes first."""
    return [table for table in (_losses(summary), _steps(summary), _rows(summary)) if table.rows]


def _losses(summary: InitSummary) -> Table:
    reference = summary.reference
    head = [Cell("loss"), Cell("perplexity")]
    if reference is not None:
        head += [Cell(f"less {reference}'s"), Cell("", kind="words")]

    def cells(row: InitRow) -> tuple[Cell, ...]:
        found = [_cell(row.loss, loss_number), _cell(row.loss and row.loss.exp(), number)]
        if reference is not None:
            verdict = Cell("the reference", kind="words")
            if row.init != reference:
                verdict = VERDICTS[told(row.versus_reference)]
            found += [_cell(row.versus_reference, signed), verdict]
        return tuple(found)

    return Table(
        "Held-out loss",
        f"In nats a token, after {summary.steps:,} steps, in windows of the training length of "
        f"{summary.train_length:,}; differences are paired by seed.",
        tuple(head),
        tuple(Row(row.init, cells(row)) for row in best_first(summary) if row.seeds),
        first="start",
    )


def _steps(summary: InitSummary) -> Table:
    reached = [row for row in best_first(summary) if row.seeds and summary.loss is not None]
    return Table(
        "" if summary.loss is None else f"Steps to a training loss of {loss_number(summary.loss)}",
        "The first step at which the mean of the last 8 losses kept (of some hundred a run) is there. Where no "
        "loss is asked for, it is each seed's own: the highest at which any of its runs ended.",
        (Cell("steps"), Cell(f"times {summary.reference}'s"), Cell("runs that came there")),
        tuple(
            Row(
                row.init,
                (
                    _cell(row.steps, lambda value: f"{value:,.0f}"),
                    _cell(row.steps_versus_reference, number),
                    Cell(f"{row.steps_reached} of {len(row.seeds)}"),
                ),
            )
            for row in reached
        ),
        first="start",
    )


def _rows(summary: InitSummary) -> Table:
    return Table(
        "What became of the rows",
        "Scale: the root mean square. Moved: how far, in scale and times the start's. Cosine: of the whole table "
        "before and after. Rank: how many directions the rows use. Neighbours: the mean cosine of rows that "
        "follow each other.",
        tuple(
            Cell(text)
            for text in (
                "scale",
                "after",
                "moved",
                "times its scale",
                "cosine",
                "rank",
                "after",
                "neighbours",
                "after",
            )
        ),
        tuple(
            Row(
                row.init,
                (
                    _plain(row.scale_before, _scale),
                    _plain(row.scale_after, _scale),
                    _plain(row.moved, _scale),
                    _plain(row.moved_times, number),
                    _plain(row.cosine, _cosine),
                    _plain(row.effective_rank_before, _rank),
                    _plain(row.effective_rank_after, _rank),
                    _plain(row.neighbour_cosine_before, _cosine),
                    _plain(row.neighbour_cosine_after, _cosine),
                ),
            )
            for row in best_first(summary)
            if row.seeds
        ),
        first="start",
    )


def raw_tables(results: Sequence[InitResult]) -> list[Table]:
    """Every value of every run, as it was measured."""
    measured = [(result.spec.name, result.measurements) for result in results if result.measurements is not None]
    rows = tuple(Row(name, (Cell(f"{measurements.loss:.5f}"),)) for name, measurements in measured)
    return [Table("Held-out loss", "In nats a token.", (Cell("loss"),), rows, first="run")] if rows else []


def _cell(estimate: Estimate | None, write: Callable[[float], str]) -> Cell:
    return Cell("") if estimate is None else Cell(write(estimate.mean), note=interval(estimate, write))


def _plain(estimate: Estimate | None, write: Callable[[float], str]) -> Cell:
    return Cell("none", kind="muted") if estimate is None else Cell(write(estimate.mean))


def _scale(value: float) -> str:
    return f"{value:.3g}"


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0:.2f}".replace("-", "\N{MINUS SIGN}")  # + 0: no minus before a zero


def _rank(value: float) -> str:
    return f"{value:.1f}"
