"""An evaluation with one value per document. Texts from one document are not independent; documents are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posembed.evaluation.measures import ByText
from posembed.evaluation.results import Evaluation, Unit


def by_document(evaluation: Evaluation, owners: Sequence[int], unit: Unit = "document") -> Evaluation:
    """Returns the evaluation with one value per document. owners: the document of each text. unit: its name."""
    rows = tuple(
        replace(
            row,
            by_text={
                measure: {length: of_documents(values, owners) for length, values in by_length.items()}
                for measure, by_length in row.by_text.items()
            },
        )
        for row in evaluation.rows
    )
    return replace(evaluation, rows=rows, texts=len(set(owners)), unit=unit)


def of_documents(values: ByText, owners: Sequence[int]) -> ByText:
    """Returns one value per document with the same mean as the values of its texts.

    With equally many texts, a document's value is the mean of its texts. Otherwise it comes from a linear approximation
    of the ratio, as in ``statistics.shares``.

    >>> of_documents((1.0, 3.0, 5.0, 5.0), (0, 0, 1, 1))
    (2.0, 5.0)
    """
    if values is None:
        return None
    found: dict[int, list[float]] = {}
    for owner, value in zip(owners, values, strict=True):
        found.setdefault(owner, []).append(value)
    mean, share = sum(values) / len(values), len(found) / len(values)
    return tuple(mean + share * sum(value - mean for value in of_owner) for of_owner in found.values())
