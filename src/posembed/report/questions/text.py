"""The page of ``compare tasks text``: the answer, differences in accuracy, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.classification import UNEVEN, TextRow, TextSpec, TextSummary
from posembed.lab.runs.results import RunResult
from posembed.plots.style import styles
from posembed.report.page import Cell, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, OUTCOMES, QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.accuracy import (
    SIGNIFICANT,
    accuracies,
    compared,
    difference_figure,
    outcome,
    points,
    wider,
    width,
)
from posembed.report.words import capitalised, failures, interval, model_size, percent
from posembed.statistics import INTERVAL


class TextPage(QuestionPage[TextSummary]):
    loss_unit = "per example"

    def about(self, spec: TextSpec, summary: TextSummary) -> str:
        return (
            f"Each run trains a small Transformer encoder ({model_size(spec)}) to classify texts from {spec.data}: "
            f"{len(summary.classes)} classes, {spec.steps:,} steps, {spec.batch} texts per batch, truncated to "
            f"{spec.train_length:,} tokens. The model is tested on {summary.examples:,} examples from "
            f"{summary.documents:,} held-out documents. Only the position encoding differs."
        )

    def paragraphs(self, summary: TextSummary) -> list[str]:
        found = [(row.name, row.accuracy) for row in summary.rows if row.accuracy]
        shares = capitalised(accuracies(f"{summary.examples:,} held-out examples", found))
        guess = (
            f"Always predicting the most frequent of the {len(summary.classes)} classes would be correct for "
            f"{percent(summary.most_frequent)}% of these examples."
        )
        differences = {row.name: row.difference for row in best_first(summary) if row.difference is not None}
        sentences = compared(differences, summary.reference or "", "documents")
        sentences += [SIGNIFICANT] if sentences else []
        smallest = smallest_significant(summary)
        if smallest is not None and percent(smallest) != "0.0":
            sentences.append(f"Differences below about {percent(smallest)} points would not be significant here.")
        return [f"{shares} {guess}" if found else "", " ".join([*sentences, *failures(summary.rows)])]

    def main_table(self, summary: TextSummary) -> Table:
        def over_seeds(row: TextRow) -> Cell:
            return estimate_cell(row.difference.over_seeds if row.difference else None, points, missing="")

        def over_documents(row: TextRow) -> Cell:
            return Cell(interval(row.difference.over_documents if row.difference else None, points), kind="muted")

        def significant(row: TextRow) -> Cell | str:
            return OUTCOMES[outcome(row.difference)] if row.difference else ""

        macro_f1 = (Cell("macro F1, %", rank=5), lambda row: estimate_cell(row.macro_f1, percent, missing=""))
        uneven = " Macro F1 gives every class the same weight, however small." if summary.uneven else ""
        return table_of(
            best_first(summary),
            f"Accuracy in percent, on {summary.examples:,} held-out examples in {len(summary.classes)} classes",
            f"A difference is significant if both of its intervals are known and neither contains 0.{uneven}",
            (Cell("accuracy, %", rank=1), lambda row: estimate_cell(row.accuracy, percent) if row.accuracy else FAILED),
            *([macro_f1] if summary.uneven else []),
            (Cell(f"minus {summary.reference}", note="over seeds", rank=2), over_seeds),
            (Cell(INTERVAL, note="over documents", rank=4), over_documents),
            (Cell("significant?", kind="words", rank=3), significant),
        )

    def tables(self, summary: TextSummary) -> list[Table]:
        classes = table_of(
            sorted(summary.classes.items(), key=lambda item: -item[1]),
            "The classes",
            f"The largest class has over {UNEVEN:g} times as many examples as the smallest." if summary.uneven else "",
            ("held-out examples", lambda item: f"{item[1]:,}"),
            ("share, %", lambda item: percent(item[1] / summary.examples)),
            first="class",
            name=lambda item: item[0],
        )
        return [trained_table(best_first(summary)), classes]

    def figures(self, summary: TextSummary) -> Iterable[Picture]:
        differences = {row.name: row.difference for row in summary.rows if row.difference is not None}
        if differences:
            drawn = styles([row.name for row in summary.rows])
            yield picture(
                difference_figure(differences, drawn, summary.reference or ""),
                name="differences",
                described=" ".join(self.answer(summary)),
                caption=f"The line at 0 is the reference, {summary.reference}. Thin bars are {INTERVAL}s over the "
                f"held-out documents. With several runs per encoding, thick bars are {INTERVAL}s of differences paired "
                "by seed. A difference is significant if both intervals are known and neither crosses the line.",
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


def best_first(summary: TextSummary) -> list[TextRow]:
    """Sorts by accuracy; failed rows come last."""
    return sorted(summary.rows, key=lambda row: -row.accuracy.value if row.accuracy else 1.0)


def smallest_significant(summary: TextSummary) -> float | None:
    """Returns half the width of the wider interval, as the median over encodings. Smaller differences would usually not
    be significant. Returns None without several runs per encoding.
    """
    compared = [row.difference for row in summary.rows if row.difference and row.difference.over_seeds.low is not None]
    halves = sorted(width(wider(difference)) / 2 for difference in compared)
    return halves[len(halves) // 2] if halves else None


PAGE = TextPage()
