"""The numbers of an algorithmic comparison as tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posembed.lab.questions.algorithms import AlgorithmResult, AlgorithmRow, AlgorithmSummary, BySize
from posembed.report.algorithms.words import best_first, interval, percent, solves_in_words
from posembed.report.lengths.tables import NO_POSITION
from posembed.report.page import Cell, Row, Table
from posembed.statistics import Estimate


def result_tables(summary: AlgorithmSummary) -> list[Table]:
    """Exact match, single tokens, and what was trained; in each, the encoding that solves most comes first."""
    tables = [_exact_match(summary), _tokens(summary), _what_was_trained(summary)]
    return [replace(table, first="encoding") for table in tables if table.rows]


def _exact_match(summary: AlgorithmSummary) -> Table:
    def cells(row: AlgorithmRow) -> tuple[Cell, ...]:
        if not row.seeds:
            return (Cell("failed", kind="failed"), *[Cell("")] * len(summary.test_sizes))
        beyond = (row.solves or 0) > summary.train_size
        return (
            Cell(solves_in_words(row, summary), kind="holds" if beyond else "words"),
            *_by_size(row.exact_match),
        )

    return Table(
        "Exact match",
        f"Percent of {summary.test_problems:,} problems of each size answered without a mistake.",
        (Cell("solves", kind="words"), *_sizes(summary)),
        tuple(Row(row.encoding, cells(row)) for row in best_first(summary)),
    )


def _tokens(summary: AlgorithmSummary) -> Table:
    return Table(
        "Single tokens of the answers",
        "Percent right, each given the right ones before it: what is left where whole answers fail.",
        _sizes(summary),
        tuple(Row(row.encoding, _by_size(row.token_accuracy)) for row in best_first(summary) if row.seeds),
    )


def _what_was_trained(summary: AlgorithmSummary) -> Table:
    return Table(
        "What was trained",
        "The same model but for its positions.",
        (Cell("parameters"), Cell("of position"), Cell("runs"), Cell("solved by seed")),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(f"{row.parameters:,}"),
                    Cell(f"{row.position_parameters:,}"),
                    Cell(f"{len(row.seeds)}", note=f"{len(row.failures)} failed" if row.failures else ""),
                    Cell(", ".join("none" if size is None else f"{size:,}" for size in row.solves_by_seed)),
                ),
            )
            for row in best_first(summary)
        ),
    )


def raw_tables(results: Sequence[AlgorithmResult]) -> list[Table]:
    """Every value of every run, as it was measured."""
    sizes = tuple(Cell(f"{size:,}") for size in results[0].spec.test_sizes)
    measured = [(result.spec.name, result.measurements) for result in results if result.measurements is not None]
    exact = tuple(Row(name, _shares(solved.exact_match)) for name, solved in measured)
    tokens = tuple(Row(name, _shares(solved.token_accuracy)) for name, solved in measured)
    tables = [Table("Exact match", "Shares.", sizes, exact), Table("Single tokens", "Shares.", sizes, tokens)]
    return [replace(table, first="run") for table in tables if table.rows]


def _sizes(summary: AlgorithmSummary) -> tuple[Cell, ...]:
    trained = summary.train_size
    return tuple(Cell(f"{size:,}", note="trained" if size == trained else "") for size in summary.test_sizes)


def _by_size(estimates: BySize) -> tuple[Cell, ...]:
    return tuple(map(_cell, estimates.values()))


def _cell(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(NO_POSITION, kind="muted")
    return Cell(percent(estimate.mean), note=interval(estimate))


def _shares(values: dict[int, float | None]) -> tuple[Cell, ...]:
    return tuple(
        Cell(NO_POSITION, kind="muted") if value is None else Cell(f"{value:.5f}") for value in values.values()
    )
