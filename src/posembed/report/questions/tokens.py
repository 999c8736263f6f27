"""The page of ``compare tasks tags`` and ``compare tasks spans``: the answer, differences in F1, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.tokens import SpanSpec, TagSpec, TokenRow, TokenSpec, TokenSummary
from posembed.lab.runs.results import RunResult
from posembed.report.page import Cell, Column, Picture, Table, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.accuracy import (
    accuracies,
    difference_columns,
    difference_picture,
    difference_sentences,
)
from posembed.report.words import capitalised, failures, listed, model_size, percent

HOW = {
    "entity F1": "An entity is correct if its first word, its last word and its type are. F1 is the harmonic mean of "
    "the share of the marked entities that are correct and the share of the entities that are found.",
    "token accuracy": "Token accuracy is the share of words with the correct label.",
    "F1": "F1 compares the words of an answer with those of the references, as in SQuAD's evaluation script; the table "
    "has the mean over questions.",
    "exact match": "Exact match is the share of answers that equal a reference, apart from case, punctuation and "
    "articles.",
}
"""How each score is computed."""


class TokenPage(QuestionPage[TokenSummary]):
    loss_unit = "per label"

    def about(self, spec: TokenSpec, summary: TokenSummary) -> str:
        task, unit = "find the answers to questions in texts", "questions"
        if isinstance(spec, TagSpec):
            task, unit = "label the words of sentences", "sentences"
        tested = listed(
            [f"{count:,} {what}" for what, count in summary.counts.items() if count and what != "documents"]
        )
        return (
            f"Each run trains a small Transformer encoder ({model_size(spec)}) to {task} ({spec.data}): "
            f"{spec.steps:,} steps, {spec.batch} {read_as(spec, unit)}."
            + (
                f" The model is tested on {tested} of {summary.counts['documents']:,} held-out documents."
                if tested
                else ""
            )
            + " Only the position encoding differs."
        )

    def paragraphs(self, summary: TokenSummary) -> list[str]:
        found = []
        for score in summary.scores:
            known = [(row.name, row.scores[score]) for row in best_first(summary) if score in row.scores]
            found.append(capitalised(accuracies(held_out(summary, score), known, score)))
        differences = {row.name: row.difference for row in best_first(summary) if row.difference is not None}
        sentences = difference_sentences(differences, summary.reference or "")
        return [
            " ".join(filter(None, [*found, guess(summary), truncated(summary)])),
            " ".join([*sentences, *failures(summary.rows)]),
        ]

    def main_table(self, summary: TokenSummary) -> Table:
        main, *others = summary.scores or ("score",)

        def column(score: str, rank: int) -> Column:
            def cell(row: TokenRow) -> Cell:
                return estimate_cell(row.scores[score], percent) if score in row.scores else FAILED

            return Cell(f"{score}, %", rank=rank), cell

        return table_of(
            best_first(summary),
            f"{capitalised(main)} in percent, on {held_out(summary, main)}",
            " ".join(
                [
                    *(HOW[score] for score in summary.scores),
                    "A difference is significant if both of its intervals are known and neither contains 0.",
                ]
            ),
            column(main, 1),
            *(column(score, 5) for score in others),
            *difference_columns(summary.reference, lambda row: row.difference),
        )

    def tables(self, summary: TokenSummary) -> list[Table]:
        others = [
            table_of(
                [row for row in best_first(summary) if score in row.differences],
                f"Differences in {score}, in percentage points",
                "",
                *difference_columns(summary.reference, lambda row, score=score: row.differences[score]),  # type: ignore[misc]
            )
            for score in summary.scores[1:]
        ]
        total = sum(summary.labels.values())
        labels = table_of(
            sorted(summary.labels.items(), key=lambda item: -item[1]),
            "The labels",
            "",
            ("held-out words", lambda item: f"{item[1]:,}"),
            ("share, %", lambda item: percent(item[1] / total)),
            first="label",
            name=lambda item: item[0],
        )
        return [*others, trained_table(best_first(summary)), labels]

    def figures(self, summary: TokenSummary) -> Iterable[Picture]:
        differences = {row.name: row.difference for row in summary.rows if row.difference is not None}
        if differences:
            names, described = [row.name for row in summary.rows], " ".join(self.answer(summary))
            yield difference_picture(differences, names, summary.reference, described, summary.scores[0])

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        def read(measured: Any) -> dict[str, str]:
            scores = {f"{name}, %": f"{100 * of.accuracy:.2f}" for name, of in measured.scores().items()}
            return scores | {"truncated": f"{measured.truncated:,}", "loss, nats": f"{measured.loss:.5f}"}

        return [values_table("Held-out part", "", results, read, write=str)]


def read_as(spec: TokenSpec, unit: str) -> str:
    """Returns how many tokens of an example a model reads, and how it reads longer ones."""
    stride = spec.stride if isinstance(spec, SpanSpec) else None
    if stride is None:
        return f"{unit} per batch, truncated to {spec.train_length:,} tokens"
    return (
        f"windows of at most {spec.train_length:,} tokens per batch, which start {stride:,} tokens apart in contexts "
        "that do not fit into one"
    )


def best_first(summary: TokenSummary) -> list[TokenRow]:
    """Sorts by the main score; failed rows come last."""
    return sorted(summary.rows, key=lambda row: -row.score.value if row.score else 1.0)


def held_out(summary: TokenSummary, score: str) -> str:
    """Returns what a score is about, with its number."""
    what = {"entity F1": "entities", "token accuracy": "words"}.get(score, "questions")
    return f"{summary.counts.get(what, 0):,} held-out {what}"


def guess(summary: TokenSummary) -> str:
    """Returns a sentence on always predicting the most frequent label; empty for questions."""
    if not summary.labels:
        return ""
    label, count = max(summary.labels.items(), key=lambda item: item[1])
    share = percent(count / sum(summary.labels.values()))
    return f"Always predicting the most frequent label, {label}, would be correct for {share}% of these words."


def truncated(summary: TokenSummary) -> str:
    """Returns a sentence on what is past the training length; empty if nothing is."""
    if not summary.truncated:
        return ""
    if summary.labels:
        return f"{summary.truncated:,} of these words are past the training length and count as wrong."
    where = "past the training length; --stride makes it read on"
    if summary.stride is not None:
        where = f"in none of the windows that start {summary.stride:,} tokens apart; a smaller --stride may help"
    return f"For {summary.truncated:,} of these questions, the model does not see the answer, which is {where}."


PAGE = TokenPage()
