"""The page of ``compare tasks addition`` and the other problems: the answer, exact match by size, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.problems import SOLVED, ProblemRow, ProblemSpec, ProblemSummary
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.problem_texts import PROBLEMS
from posembed.report.charts import Line, line_chart
from posembed.report.page import Cell, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, by_size, trained_table, values_table
from posembed.report.words import called, ended_at, failures, interval, listed, model_size, names_of, up_to
from posembed.statistics import INTERVAL


class ProblemsPage(QuestionPage[ProblemSummary]):
    loss_unit = "per token of the answers"

    def about(self, spec: ProblemSpec, summary: ProblemSummary) -> str:
        return (
            f"Each run trains the same small Transformer decoder ({model_size(spec)}) for {spec.steps:,} steps on "
            f"problems of 1 to {spec.train_size:,} {summary.unit} ({PROBLEMS[spec.problem].line}), and tests it on "
            f"problems of up to {max(spec.test_sizes):,}. Only the position encoding differs."
        )

    def paragraphs(self, summary: ProblemSummary) -> list[str]:
        return [" ".join([*_past_training(summary), *failures(summary.rows)]), " ".join(_solved(summary))]

    def main_table(self, summary: ProblemSummary) -> Table:
        ends = (summary.train_size, max(summary.test_sizes))

        def solves(row: ProblemRow) -> Cell:
            if not row.seeds:
                return FAILED
            kind = "holds" if (row.solves or 0) > summary.train_size else "words"
            return Cell(up_to(row.solves, summary.test_sizes), kind=kind)

        return table_of(
            best_first(summary),
            f"Exact match in percent, {summary.problem}, by {summary.unit}",
            f"The share of problems answered without a mistake, out of {summary.test_problems:,} of each size.",
            (Cell("solves", kind="words", rank=1), solves),
            *by_size(
                summary.test_sizes,
                lambda row: row.exact_match,
                percent,
                trained=summary.train_size,
                rank=lambda size: 2 if size in ends else 4,
            ),
        )

    def tables(self, summary: ProblemSummary) -> list[Table]:
        return [
            table_of(
                [row for row in best_first(summary) if row.seeds],
                "Single tokens of the answers",
                "The percentage of tokens predicted correctly, each from the correct tokens before it.",
                *by_size(summary.test_sizes, lambda row: row.token_accuracy, percent, trained=summary.train_size),
            ),
            trained_table(best_first(summary), ("solved by seed", lambda row: ", ".join(_by_seed(row)))),
        ]

    def figures(self, summary: ProblemSummary) -> Iterable[Picture]:
        yield picture(
            line_chart(
                [Line.of(row.name, row.exact_match, ends_at(row, summary)) for row in summary.rows],
                names=[row.name for row in summary.rows],
                title="problems answered without a mistake, percent",
                below=f"size of the problem, in {summary.unit}",
                ticks=summary.test_sizes,
                trained=summary.train_size,
                target=SOLVED,
            ),
            name="sizes",
            described=" ".join(self.answer(summary)),
            caption=f"The dotted lines mark the largest training size and the {SOLVED:.0%} accuracy at which a size "
            f"counts as solved. With several runs per encoding, shaded bands are {INTERVAL}s.",
        )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [
            values_table("Exact match", "As shares from 0 to 1.", results, lambda m: m.exact_match),
            values_table("Single tokens", "As shares from 0 to 1.", results, lambda m: m.token_accuracy),
        ]


def best_first(summary: ProblemSummary) -> list[ProblemRow]:
    """Sorts by the largest size solved, then by the exact match over all sizes; failed rows come last."""

    def key(row: ProblemRow) -> tuple[bool, int, float]:
        shares = [share.value for share in row.exact_match.values() if share is not None]
        return not row.seeds, -(row.solves or 0), -sum(shares)

    return sorted(summary.rows, key=key)


def ends_at(row: ProblemRow, summary: ProblemSummary) -> int | None:
    return ended_at(row, row.exact_match, summary.train_size)


def percent(share: float) -> str:
    """Formats a share, clipped to 0 and 1, in percent: 0, 0.5, 47, 99.5, 100. Shares are never rounded to 0 or 100."""
    share = min(max(share, 0.0), 1.0)
    text = f"{100 * share:.0f}" if 0.1 <= share < 0.985 else f"{100 * share:.1f}".removesuffix(".0")
    if text == "100" and share < 1:
        return ">99.9"
    return "<0.1" if text == "0" and share > 0 else text


def _by_seed(row: ProblemRow) -> list[str]:
    return ["none" if size is None else f"{size:,}" for size in row.solves_by_seed]


def _past_training(summary: ProblemSummary) -> list[str]:
    rows, trained = [row for row in best_first(summary) if row.seeds], summary.train_size
    if not rows:
        return []
    beyond = names_of(row for row in rows if (row.solves or 0) > trained) or "none of the encodings"
    ends = [f"{called(row.name)} has no positions past {end:,}." for row in rows if (end := ends_at(row, summary))]
    lead = (
        f"After training on {summary.problem} with up to {trained:,} {summary.unit}, larger problems are solved "
        f"with {beyond}. The largest size solved is {listed([_largest(row, summary) for row in rows])}."
        if max(summary.test_sizes) > trained
        else f"No size past the {trained:,} {summary.unit} of training was tested."
    )
    return [lead, *ends]


def _largest(row: ProblemRow, summary: ProblemSummary) -> str:
    share = None if row.solves is None else row.exact_match[row.solves]
    known = ", ".join(filter(None, [f"{percent(share.value)}%", interval(share, percent)])) if share else ""
    exact = f" (exact match {known})" if known else ""
    return f"{up_to(row.solves, summary.test_sizes)} with {called(row.name)}{exact}"


def _solved(summary: ProblemSummary) -> list[str]:
    rule = (
        f"A size counts as solved if the model answers at least {SOLVED:.0%} of the problems of that size, and of "
        "every smaller size tested, without a mistake."
    )
    rows = [row for row in best_first(summary) if len(set(row.solves_by_seed)) > 1]
    differ = "; ".join(f"{called(row.name)} {listed(_by_seed(row))}" for row in rows)
    return [rule, *([f"The largest size solved differs by seed: {differ}."] if differ else [])]


PAGE = ProblemsPage()
