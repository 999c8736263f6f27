"""The page of ``compare tasks text``: the answer, differences in accuracy, the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.classification import UNEVEN, TextRow, TextSpec, TextSummary
from posembed.lab.runs.results import RunResult
from posembed.report.drawing import styles
from posembed.report.page import Cell, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.accuracy import (
    accuracy,
    compared,
    difference_figure,
    in_short,
    percent,
    points,
    wider,
)
from posembed.report.words import (
    called,
    capitalised,
    failures,
    interval,
    listed,
    model_size,
    runs_per,
    share_interval,
)
from posembed.statistics import INTERVAL, Estimate


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
        def over_seeds(row: TextRow) -> Cell:
            found = row.difference and row.difference.over_seeds
            return Cell(points(found.value), note=interval(found, points)) if found else Cell("")

        def over_documents(row: TextRow) -> Cell:
            found = row.difference and row.difference.over_documents
            return Cell(interval(found, points), kind="muted") if found else Cell("")

        def significant(row: TextRow) -> Cell:
            difference = row.difference
            if difference is None:
                return Cell("", kind="words" if row.accuracy else "")
            if difference.significant:
                better = difference.over_seeds.value > 0
                return Cell("better", kind="good") if better else Cell("worse", kind="bad")
            unknown = None in (difference.over_seeds.low, difference.over_documents.low)
            return Cell("unknown" if unknown else "no", kind="muted")

        uneven = " Macro F1 weighs every class equally, however small." if summary.uneven else ""
        return table_of(
            best_first(summary),
            f"Accuracy in percent, on {summary.examples:,} held-out examples in {len(summary.classes)} classes",
            f"A difference is significant if both of its intervals are known and neither contains 0.{uneven}",
            (Cell("accuracy, %", rank=1), lambda row: share_cell(row.accuracy, failed="failed")),
            *([(Cell("macro F1, %", rank=5), lambda row: share_cell(row.macro_f1))] if summary.uneven else []),
            (Cell(f"minus {summary.reference}", note="over seeds", rank=2), over_seeds),
            (Cell(INTERVAL, note="over documents", rank=4), over_documents),
            (Cell("significant?", kind="words", rank=3), significant),
            first=self.first,
        )

    def tables(self, summary: TextSummary) -> list[Table]:
        classes = table_of(
            sorted(summary.classes.items(), key=lambda item: -item[1]),
            "The classes",
            f"The largest has more than {UNEVEN:g} times the examples of the smallest." if summary.uneven else "",
            ("held-out examples", lambda item: f"{item[1]:,}"),
            ("share, %", lambda item: percent(item[1] / summary.examples)),
            first="class",
            name=lambda item: item[0],
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


def share_cell(share: Estimate | None, failed: str = "") -> Cell:
    if share is None:
        return Cell(failed, kind="bad" if failed else "")
    return estimate_cell(share, percent, write_interval=share_interval)


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
