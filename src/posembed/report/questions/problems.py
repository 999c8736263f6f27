"""The page of ``compare tasks addition`` and the other problems: the answer, exact match by size, the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.problems import SOLVED, ProblemRow, ProblemSpec, ProblemSummary
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.problem_texts import PROBLEMS
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Cell, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage, by_size, trained_table, values_table
from posembed.report.words import (
    called,
    capitalised,
    ended_at,
    failures,
    listed,
    model_size,
    names_of,
    repeated,
    runs_per,
    share_interval,
    up_to,
)
from posembed.statistics import INTERVAL, Estimate


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
        """Returns who solves larger problems than in training, and how large; who does not; how certain it is."""
        others = " ".join((_not_beyond(summary), *failures(summary.rows))).strip()
        return [text for text in (_beyond(summary), others, _certainty(summary)) if text]

    def main_table(self, summary: ProblemSummary) -> Table:
        ends = (summary.train_size, max(summary.test_sizes))

        def solves(row: ProblemRow) -> Cell:
            if not row.seeds:
                return Cell("failed", kind="failed")
            kind = "holds" if (row.solves or 0) > summary.train_size else "words"
            return Cell(solves_in_words(row, summary), kind=kind)

        return table_of(
            best_first(summary),
            f"Exact match in percent, {summary.problem}, by {summary.unit}",
            f"The share of {summary.test_problems:,} problems of each size that are answered without a mistake.",
            (Cell("solves", kind="words", rank=1), solves),
            *by_size(
                summary.test_sizes,
                lambda row: row.exact_match,
                percent,
                trained=summary.train_size,
                rank=lambda size: 2 if size in ends else 4,
                write_interval=_interval,
            ),
            first=self.first,
        )

    def tables(self, summary: ProblemSummary) -> list[Table]:
        def by_seed(row: ProblemRow) -> str:
            return ", ".join(_sizes(row))

        return [
            table_of(
                [row for row in best_first(summary) if row.seeds],
                "Single tokens of the answers",
                "Percent correct, each predicted from the correct tokens before it.",
                *by_size(
                    summary.test_sizes,
                    lambda row: row.token_accuracy,
                    percent,
                    trained=summary.train_size,
                    write_interval=_interval,
                ),
                first=self.first,
            ),
            trained_table(best_first(summary), self.first, ("solved by seed", by_seed)),
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
                shade_trained=True,
            ),
            name="sizes",
            described=" ".join(self.answer(summary)),
            caption="Shaded at the left: the sizes of training. The dotted line: a size is solved from here, at "
            f"{SOLVED:.0%}.{f' Shaded bands: {INTERVAL}s over seeds.' if repeated(summary.rows) else ''}",
        )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [
            values_table("Exact match", "Shares.", results, lambda m: m.exact_match),
            values_table("Single tokens", "Shares.", results, lambda m: m.token_accuracy),
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
    """Formats a share in percent: 0, 0.5, 47, 99.5, 100. Only exact shares become 100 or 0."""
    text = f"{100 * share:.0f}" if 0.1 <= share < 0.985 else f"{100 * share:.1f}".removesuffix(".0")
    if text == "100" and share < 1:
        return ">99.9"
    return "<0.1" if text == "0" and share > 0 else text


def solves_in_words(row: ProblemRow, summary: ProblemSummary) -> str:
    return up_to(row.solves, summary.test_sizes) if row.seeds else ""


def _interval(estimate: Estimate | None) -> str:
    return share_interval(estimate, 0)


def _sizes(row: ProblemRow) -> list[str]:
    """Returns the largest size solved by each seed."""
    return ["none" if size is None else f"{size:,}" for size in row.solves_by_seed]


def _beyond(summary: ProblemSummary) -> str:
    trained, longest, unit = summary.train_size, max(summary.test_sizes), summary.unit
    if not any(row.seeds for row in summary.rows):
        return ""
    if longest <= trained:
        return f"Nothing was tested past the {trained:,} {unit} of training."
    lead = f"After training on {summary.problem} with up to {trained:,} {unit},"
    rows = [row for row in best_first(summary) if (row.solves or 0) > trained]
    if not rows:
        return f"{lead} no encoding solves any larger size tested."
    parts = [
        f"{called(row.name)} {'' if index else 'solves '}up to {row.solves:,}{_at_the_end(row, longest)}"
        for index, row in enumerate(rows)
    ]
    return f"{lead} {listed(parts)}."


def _at_the_end(row: ProblemRow, longest: int) -> str:
    """Returns the exact match at the largest size solved."""
    share = None if row.solves is None else row.exact_match[row.solves]
    if share is None:
        return ""
    known = f", {INTERVAL} {_interval(share)}" if _interval(share) else ""
    largest = ", the largest size tested" if row.solves == longest else ""
    return f"{largest} (exact match {percent(share.value)}%{known})"


def _not_beyond(summary: ProblemSummary) -> str:
    """Reports those that solve nothing larger than in training, grouped by what they solve."""
    rows = [row for row in best_first(summary) if row.seeds and (row.solves or 0) <= summary.train_size]
    ended = [row for row in rows if ends_at(row, summary) is not None]
    others = [row for row in rows if row not in ended]
    sentences = [
        f"{names_of(those)} {_stops(those, summary)}."
        for size in dict.fromkeys(row.solves for row in others)
        if (those := [row for row in others if row.solves == size])
    ]
    sentences += [
        f"{called(row.name)}, whose positions end at {ends_at(row, summary):,}, {_stops([row], summary)}."
        for row in ended
    ]
    return " ".join(map(capitalised, sentences))


def _stops(rows: list[ProblemRow], summary: ProblemSummary) -> str:
    several, size = len(rows) > 1, rows[0].solves
    if size is None:
        return f"{'do' if several else 'does'} not solve even {min(summary.test_sizes):,}"
    return f"{'solve' if several else 'solves'} up to {size:,}"


def _certainty(summary: ProblemSummary) -> str:
    lead = (
        f"A size counts as solved if at least {SOLVED:.0%} of its problems, and of those of every smaller size tested, "
        f"are answered without a mistake; {runs_per(summary.rows)}"
    )
    apart = [
        f"{called(row.name)} {listed(_sizes(row))}" for row in best_first(summary) if len(set(row.solves_by_seed)) > 1
    ]
    if apart:
        return f"{lead}. The runs differ: by seed, {'; '.join(apart)}."
    return f"{lead}." if repeated(summary.rows) else f"{lead}, so there are no intervals."


PAGE = ProblemsPage()
