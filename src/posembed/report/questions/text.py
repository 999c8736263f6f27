"""The page of ``compare tasks text``: the answer, differences in accuracy, the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.text import UNEVEN, TextRow, TextSpec, TextSummary
from posembed.lab.runs.results import RunResult
from posembed.report.drawing import styles
from posembed.report.page import Cell, Picture, Row, Table, picture
from posembed.report.questions import QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.accuracy import (
    accuracy,
    compared,
    difference_figure,
    in_short,
    percent,
    points,
    share_interval,
    wider,
)
from posembed.report.words import called, capitalised, failures, interval, listed, model_size, runs_per
from posembed.statistics import INTERVAL


class TextPage(QuestionPage[TextSummary]):
    loss_unit = "per example"

    def title(self, summary: TextSummary) -> str:
        return "Does the position encoding matter for classifying texts?"

    def about(self, spec: TextSpec, summary: TextSummary) -> str:
        return (
            f"A small Transformer encoder ({model_size(spec)}), trained for {spec.steps:,} steps of {spec.batch} texts "
            f"of {spec.data}, truncated at {spec.train_length:,} tokens, to choose one of {len(summary.classes)} "
            f"classes; tested on {summary.examples:,} examples of {summary.documents:,} documents that it never saw. "
            f"Only the position encoding differs. {capitalised(runs_per(summary.rows))}."
        )

    def answer(self, summary: TextSummary) -> list[str]:
        """Returns learned positions compared with the reference, then the others; then how to take it."""
        paragraphs = [" ".join(differences(summary)), " ".join([*standing(summary), *failures(summary.rows)])]
        return [text for text in paragraphs if text]

    def main_table(self, summary: TextSummary) -> Table:
        head = [Cell("accuracy, %", rank=1)]
        head += [Cell("macro F1, %", rank=5)] if summary.uneven else []
        head += [
            Cell(f"minus {summary.reference}", note="over seeds", rank=2),
            Cell(INTERVAL, note="over documents", rank=4),
            Cell("significant?", kind="words", rank=3),
        ]

        def cells(row: TextRow) -> tuple[Cell, ...]:
            if row.accuracy is None:
                return (Cell("failed", kind="bad"), *[Cell("")] * (len(head) - 1))
            found = [share_cell(row.accuracy)]
            found += [share_cell(row.macro_f1)] if summary.uneven else []
            difference = row.difference
            if difference is None:
                return (*found, Cell(""), Cell(""), Cell("", kind="words"))
            value = difference.over_seeds.value
            kind = ("good" if value > 0 else "bad") if difference.significant else "muted"
            unknown = None in (difference.over_seeds.low, difference.over_documents.low)
            return (
                *found,
                Cell(points(value), note=interval(difference.over_seeds, points)),
                Cell(interval(difference.over_documents, points), kind="muted"),
                Cell({"good": "better", "bad": "worse"}.get(kind, "unknown" if unknown else "no"), kind=kind),
            )

        uneven = " Macro F1 weighs every class equally, however small." if summary.uneven else ""
        return Table(
            f"Accuracy in percent, on {summary.examples:,} held-out examples in {len(summary.classes)} classes",
            f"A difference is significant if both of its intervals are known and neither contains 0.{uneven}",
            tuple(head),
            tuple(Row(row.name, cells(row)) for row in best_first(summary)),
            first=self.first,
        )

    def tables(self, summary: TextSummary) -> list[Table]:
        says = f"The largest has more than {UNEVEN:g} times the examples of the smallest." if summary.uneven else ""
        classes = Table(
            "The classes",
            says,
            (Cell("held-out examples"), Cell("share, %")),
            tuple(
                Row(name, (Cell(f"{count:,}"), Cell(percent(count / summary.examples))))
                for name, count in sorted(summary.classes.items(), key=lambda item: -item[1])
            ),
            first="class",
        )
        return [trained_table(best_first(summary), self.first), classes]

    def figures(self, summary: TextSummary) -> Iterable[Picture]:
        differences = {row.name: row.difference for row in summary.rows if row.difference is not None}
        several = any(difference.over_seeds.low is not None for difference in differences.values())
        seeds = f"Thick: the {INTERVAL} over seeds, paired by seed. " if several else ""
        if differences:
            drawn = styles([row.name for row in summary.rows])
            yield picture(
                difference_figure(differences, drawn, summary.reference or ""),
                name="differences",
                described=" ".join(self.answer(summary)),
                caption=f"The line at 0 is {summary.reference}. {seeds}Thin: the {INTERVAL} over the held-out "
                "documents. A difference is significant if both intervals are known and neither crosses the line.",
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        def read(measured: Any) -> dict[str, str]:
            right = sum(measured.right)
            return {
                "correct examples": f"{right:,}",
                "accuracy, %": f"{100 * right / sum(measured.examples):.2f}",
                "macro F1, %": f"{100 * measured.macro_f1:.2f}",
                "loss, nats": f"{measured.loss:.5f}",
            }

        return [values_table("Held-out examples", "", results, read, write=str)]


def share_cell(estimate: Any) -> Cell:
    return estimate_cell(estimate, percent, write_interval=share_interval)


def best_first(summary: TextSummary) -> list[TextRow]:
    """Sorts by accuracy; failed rows come last."""
    return sorted(summary.rows, key=lambda row: (row.accuracy is None, -row.accuracy.value if row.accuracy else 0.0))


def differences(summary: TextSummary) -> list[str]:
    """Returns sentences that compare each encoding with the reference, learned positions first and in full."""
    rows = [(row, row.difference) for row in best_first(summary) if row.difference is not None]
    rows.sort(key=lambda pair: pair[0].name != "learned")
    if not rows:  # the reference is alone, or all its runs failed
        others = [row for row in best_first(summary) if row.name != summary.reference]
        found = listed([f"{called(row.name)} {accuracy(row.accuracy)}" for row in others if row.accuracy])
        return [f"Accuracy on {summary.examples:,} held-out examples: {found}."] if found else []
    first, difference = rows[0]
    sentences = [capitalised(compared(first.name, difference, summary.reference or "", "documents"))]
    if rows[1:]:
        sentences += in_short({row.name: of for row, of in rows[1:]}, summary.reference or "")
    return sentences


def standing(summary: TextSummary) -> list[str]:
    """Returns sentences on the reference's accuracy, and on which differences could be significant."""
    reference = next((row for row in summary.rows if row.name == summary.reference), None)
    if reference is None or reference.accuracy is None:
        return []
    sentences = [
        f"{capitalised(called(reference.name))} classifies {accuracy(reference.accuracy)} of the {summary.examples:,} "
        f"held-out examples correctly; always answering the most frequent of {len(summary.classes)} classes would be "
        f"correct for {percent(summary.most_frequent)}%. {capitalised(runs_per(summary.rows))}."
    ]
    smallest = smallest_significant(summary)
    if smallest is not None and percent(smallest) != "0.0":
        sentences.append(f"Differences below about {percent(smallest)} points would not be significant here.")
    return sentences


def smallest_significant(summary: TextSummary) -> float | None:
    """Returns half of the wider interval of the median encoding: what a difference must exceed to be significant.

    None with one run per encoding.
    """
    widest = [
        wider(row.difference) for row in summary.rows if row.difference and row.difference.over_seeds.low is not None
    ]
    halves = sorted((e.high - e.low) / 2 for e in widest if e.low is not None and e.high is not None)
    return halves[len(halves) // 2] if halves else None


PAGE = TextPage()
