"""The page of ``compare tasks text``: the answer, differences in accuracy, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.classification import UNEVEN, TextRow, TextSpec, TextSummary
from posembed.lab.runs.results import RunResult
from posembed.report.page import Cell, Picture, Table, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.accuracy import (
    accuracies,
    difference_columns,
    difference_picture,
    difference_sentences,
)
from posembed.report.words import capitalised, failures, model_size, percent


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
        sentences = difference_sentences(differences, summary.reference or "")
        return [f"{shares} {guess}" if found else "", " ".join([*sentences, *failures(summary.rows)])]

    def main_table(self, summary: TextSummary) -> Table:
        macro_f1 = (Cell("macro F1, %", rank=5), lambda row: estimate_cell(row.macro_f1, percent, missing=""))
        uneven = " Macro F1 gives every class the same weight, however small." if summary.uneven else ""
        return table_of(
            best_first(summary),
            f"Accuracy in percent, on {summary.examples:,} held-out examples in {len(summary.classes)} classes",
            f"A difference is significant if both of its intervals are known and neither contains 0.{uneven}",
            (Cell("accuracy, %", rank=1), lambda row: estimate_cell(row.accuracy, percent) if row.accuracy else FAILED),
            *([macro_f1] if summary.uneven else []),
            *difference_columns(summary.reference, lambda row: row.difference),
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
            names = [row.name for row in summary.rows]
            yield difference_picture(differences, names, summary.reference, " ".join(self.answer(summary)))

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


PAGE = TextPage()
