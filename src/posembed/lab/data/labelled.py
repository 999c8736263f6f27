"""Labelled texts, split by document into a training part and a held-out part."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posembed.errors import DataError

HELD_OUT_SHARE = 0.2
LABELS_PER_DOCUMENT = 0.5
"""More different labels than this per document identify documents instead of sorting them into classes."""


@dataclass(frozen=True, slots=True)
class Example:
    """document: keeps its examples, such as pieces of one file or equal texts, on one side of the split."""

    text: str
    label: str
    document: str


@dataclass(frozen=True)
class Labelled:
    """labels: sorted. sha256: covers every example and its side of the split."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    labels: tuple[str, ...]
    description: str
    sha256: str


def labelled(
    train: Sequence[Example],
    held_out: Sequence[Example] | None,
    *,
    name: str,
    column: str = "label",
    blank: int = 0,
) -> Labelled:
    """Checks the labels and splits the examples, or keeps an existing split.

    Args:
        train, held_out: all examples and None, or a data set's own two parts. Documents in both are not trained on.
        name: of the data. column: of the labels, for errors. blank: how many more examples had no text.

    Raises:
        DataError: labels that are not classes, a single label, one that only one document has, or one that only one
            of a data set's own parts has.
    """
    notes = ""
    if held_out is None:
        check_labels(train, name=name, column=column)
        train, held_out = split_by_document(train)
    else:
        known = {example.document for example in held_out}
        kept = [example for example in train if example.document not in known]
        if len(kept) < len(train):
            notes = f", {len(train) - len(kept):,} more left out because they are held out too"
        train = kept
        check_labels([*train, *held_out], name=name, column=column)
    for side, others, what in ((train, held_out, "held-out"), (held_out, train, "training")):
        missing = sorted({e.label for e in side} - {e.label for e in others})
        if missing:
            raise DataError(f"{name} has no {what} example of {missing[0]!r}; leave that label out, or add some")
    digest = hashlib.sha256()
    for part, examples in (("train", train), ("held out", held_out)):
        for e in examples:
            digest.update("\0".join((part, e.document, e.label, e.text, "")).encode())
    labels = tuple(sorted({example.label for example in train}))
    documents = len({example.document for example in held_out})
    return Labelled(
        train=tuple(train),
        held_out=tuple(held_out),
        labels=labels,
        description=(
            f"{name}: {len(labels)} classes; {len(train):,} training examples{notes}, {len(held_out):,} of "
            f"{documents:,} other documents held out" + f", {blank:,} without a text skipped" * bool(blank)
        ),
        sha256=digest.hexdigest(),
    )


def split_by_document(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Returns (train, held out). Held out are whole documents with a fifth of each label's examples, at least one
    document, drawn by the hash of their names. A document counts for the label of its first example."""
    sizes = Counter(example.document for example in examples)
    by_label = defaultdict(list)
    for document, label in {e.document: e.label for e in reversed(examples)}.items():
        by_label[label].append(document)
    held_out = set()
    for documents in by_label.values():
        drawn = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
        smallest = min(drawn, key=sizes.__getitem__)
        held_out.add(smallest)
        room = HELD_OUT_SHARE * sum(sizes[document] for document in drawn) - sizes[smallest]
        for document in drawn:
            if document != smallest and sizes[document] <= room:
                held_out.add(document)
                room -= sizes[document]
    return (
        [example for example in examples if example.document not in held_out],
        [example for example in examples if example.document in held_out],
    )


def check_labels(examples: Sequence[Example], *, name: str, column: str) -> None:
    """Raises DataError for labels that are not classes, or from which nothing can be learned."""
    documents = defaultdict(set)
    for example in examples:
        documents[example.label].add(example.document)
    if not documents:
        raise DataError(f"{name} has no example with a text; expected at least two of each of two classes")
    for label in documents:
        if _is_fraction(label):
            raise DataError(
                f"the {column} of {name} holds numbers such as {label}; expected names or whole numbers. Choose "
                "another column, or sort the numbers into a few named ranges first"
            )
    total = len({example.document for example in examples})
    if len(documents) > 2 and len(documents) > total * LABELS_PER_DOCUMENT:
        raise DataError(
            f"the {column} of {name} has {len(documents):,} different values in {total:,} texts, such as "
            f"{_shortened(next(iter(documents)))!r}: these identify texts, not classes; choose another column"
        )
    if len(documents) == 1:
        raise DataError(
            f"all texts of {name} have the {column} {next(iter(documents))!r}; expected two classes or more"
        )
    alone = sorted(label for label, of in documents.items() if len(of) == 1)
    if alone:
        others = f", and so have {len(alone) - 1} other classes" if len(alone) > 1 else ""
        raise DataError(
            f"the class {_shortened(alone[0])!r} of {name} has one example{others}; expected two or more, one of them "
            "held out. Add some, or leave it out"
        )


def _is_fraction(label: str) -> bool:
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _shortened(label: str) -> str:
    return label if len(label) <= 40 else label[:39] + "…"
