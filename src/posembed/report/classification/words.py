"""The answer about classified texts, in sentences made from the numbers."""

from __future__ import annotations

from posembed.lab.questions.classification import ClassificationRow, ClassificationSummary
from posembed.report.accuracy_words import accuracy, compared, in_short, percent, wider
from posembed.report.words import called, capitalised, listed, runs_of_each

DOCUMENTS = "documents"


def best_first(summary: ClassificationSummary) -> list[ClassificationRow]:
    """By accuracy; the failed last."""
    return sorted(summary.rows, key=lambda row: (row.accuracy is None, -row.accuracy.mean if row.accuracy else 0.0))


def answer(summary: ClassificationSummary) -> list[str]:
    """Two paragraphs: learned positions against the reference, then the others; how to take it. Never more than
    the numbers bear: what two chances, of seeds and of documents, could have made is not called a difference."""
    paragraphs = [" ".join(_differences(summary)), " ".join(_standing(summary))]
    return [text for text in paragraphs if text]


def _differences(summary: ClassificationSummary) -> list[str]:
    reference = next(row for row in summary.rows if row.encoding == summary.reference)
    rows = [(row, row.difference) for row in best_first(summary) if row.difference is not None]
    rows.sort(key=lambda pair: pair[0].encoding != "learned")
    if not rows:  # it stands alone, or all its runs failed
        others = [row for row in best_first(summary) if row.accuracy and row is not reference]
        there = listed([f"{called(row.encoding)} {accuracy(row.accuracy)}" for row in others if row.accuracy])
        return [f"Told of {summary.examples:,} held-out examples: {there}."] if there else []
    first, difference = rows[0]
    sentences = [capitalised(compared(first.encoding, difference, summary.reference, DOCUMENTS))]
    if rows[1:]:
        sentences += in_short({row.encoding: of for row, of in rows[1:]}, summary.reference)
    return sentences


def _standing(summary: ClassificationSummary) -> list[str]:
    if not any(row.seeds for row in summary.rows):
        return [failure for row in summary.rows for failure in _failures(row)]
    reference = next(row for row in summary.rows if row.encoding == summary.reference)
    sentences = []
    if reference.accuracy is not None:
        sentences.append(
            f"{capitalised(called(summary.reference))} tells {accuracy(reference.accuracy)} of the "
            f"{summary.examples:,} held-out examples; always answering the most frequent of "
            f"{len(summary.classes)} classes would tell {percent(summary.most_frequent)}%. "
            f"{capitalised(runs_of_each(summary.rows))}."
        )
    smallest = smallest_told(summary)
    if smallest is not None and percent(smallest) != "0.0":
        sentences.append(f"A difference below about {percent(smallest)} points could not have been told here.")
    return sentences + [failure for row in summary.rows for failure in _failures(row)]


def smallest_told(summary: ClassificationSummary) -> float | None:
    """Half of the wider interval, in the middle of all encodings: what a difference had to exceed to be
    told. None where there is a single run of each."""
    there = [row.difference for row in summary.rows if row.difference is not None]
    both = [wider(of) for of in there if of.over_seeds.low is not None]
    halves = sorted((of.high - of.low) / 2 for of in both if of.low is not None and of.high is not None)
    return halves[len(halves) // 2] if halves else None


def _failures(row: ClassificationRow) -> list[str]:
    if not row.failures:
        return []
    what = "A run" if row.seeds else "Training"
    return [f"{what} with {called(row.encoding)} failed{' and is left out' * bool(row.seeds)} ({row.failures[0]})."]
