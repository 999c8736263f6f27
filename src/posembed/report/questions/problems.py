"""The page of ``compare tasks addition`` and the other problems: the answer, exact match by size, the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.problems import SOLVED, BySize, ProblemRow, ProblemSpec, ProblemSummary
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.problem_texts import PROBLEMS
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Cell, Picture, Row, Table, picture
from posembed.report.questions import QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.problems_words import (
    answer,
    best_first,
    ends_at,
    percent,
    share_interval,
    solves_in_words,
)
from posembed.report.words import capitalised, model_size, runs_per
from posembed.statistics import INTERVAL


class ProblemsPage(QuestionPage[ProblemSummary]):
    loss_note = "Over the answers' tokens only."

    def title(self, summary: ProblemSummary) -> str:
        return f"Which position encoding solves {summary.problem} past {summary.train_size:,} {summary.unit}?"

    def about(self, spec: ProblemSpec, summary: ProblemSummary) -> str:
        return (
            f"The same small Transformer decoder ({model_size(spec)}), trained for {spec.steps:,} steps on problems of "
            f"1 to {spec.train_size:,} {summary.unit}: {PROBLEMS[spec.problem].line}. Then tested with up to "
            f"{max(spec.test_sizes):,}. Only the positions differ. {capitalised(runs_per(summary.rows))}."
        )

    def answer(self, summary: ProblemSummary) -> list[str]:
        return answer(summary)

    def main_table(self, summary: ProblemSummary) -> Table:
        ends = (summary.train_size, max(summary.test_sizes))
        sizes = [
            Cell(cell.text, cell.note, rank=2 if size in ends else 4)
            for size, cell in zip(summary.test_sizes, heads(summary), strict=True)
        ]

        def cells(row: ProblemRow) -> tuple[Cell, ...]:
            if not row.seeds:
                return (Cell("failed", kind="failed"), *[Cell("")] * len(sizes))
            kind = "holds" if (row.solves or 0) > summary.train_size else "words"
            return (Cell(solves_in_words(row, summary), kind=kind), *by_size(row.exact_match))

        return Table(
            f"Exact match in percent, {summary.problem}, by {summary.unit}",
            f"The share of {summary.test_problems:,} problems of each size that are answered without a mistake.",
            (Cell("solves", kind="words", rank=1), *sizes),
            tuple(Row(row.name, cells(row)) for row in best_first(summary)),
            first=self.first,
        )

    def tables(self, summary: ProblemSummary) -> list[Table]:
        return [
            Table(
                "Single tokens of the answers",
                "Percent correct, each predicted from the correct tokens before it.",
                heads(summary),
                tuple(Row(row.name, by_size(row.token_accuracy)) for row in best_first(summary) if row.seeds),
                first=self.first,
            ),
            trained_table(
                best_first(summary),
                self.first,
                {
                    Cell("solved by seed"): lambda row: ", ".join(
                        "none" if size is None else f"{size:,}" for size in row.solves_by_seed
                    )
                },
            ),
        ]

    def figures(self, summary: ProblemSummary) -> Iterable[Picture]:
        lines = [
            Line(
                row.name,
                {size: share for size, share in row.exact_match.items() if share is not None},
                ends_at(row, summary),
            )
            for row in summary.rows
        ]
        several = any(len(row.seeds) > 1 for row in summary.rows)
        yield picture(
            line_chart(
                lines,
                names=[row.name for row in summary.rows],
                title="problems answered without a mistake, percent",
                below=f"size of the problem, in {summary.unit}",
                ticks=summary.test_sizes,
                trained=summary.train_size,
                target=SOLVED,
                shade_trained=True,
            ),
            name="sizes",
            described=" ".join(answer(summary)),
            caption="Shaded at the left: the sizes of training. The dotted line: a size is solved from here, at "
            f"{SOLVED:.0%}.{f' Shaded bands: {INTERVAL}s over seeds.' if several else ''}",
        )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [
            values_table("Exact match", "Shares.", results, lambda m: m.exact_match),
            values_table("Single tokens", "Shares.", results, lambda m: m.token_accuracy),
        ]


def heads(summary: ProblemSummary) -> tuple[Cell, ...]:
    trained = summary.train_size
    return tuple(Cell(f"{size:,}", note="trained" if size == trained else "") for size in summary.test_sizes)


def by_size(shares: BySize) -> tuple[Cell, ...]:
    return tuple(estimate_cell(share, percent, write_interval=share_interval) for share in shares.values())


PAGE = ProblemsPage()
