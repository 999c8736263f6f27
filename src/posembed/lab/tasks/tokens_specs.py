"""The settings of labelling words and finding answers, and what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL
from posembed.lab.tasks.classification_specs import LOSS, LabelledSpec, by_item
from posembed.measure.frame import Value
from posembed.settings import Amount, Count, option

ENTITY_F1, TOKEN_ACCURACY = metrics("tags")
F1, EXACT = metrics("spans")


@dataclass(frozen=True)
class Tagged:
    """Measurements of one run on the held-out sentences. Tuples have one number per document."""

    right: tuple[int, ...]
    """The numbers of words with the correct label."""
    words: tuple[int, ...]
    found: tuple[int, ...]
    """The numbers of entities that are found exactly: their first word, their last word and their type."""
    predicted: tuple[int, ...]
    entities: tuple[int, ...]
    """The numbers of entities that the model marks (``predicted``) and of those in the data; 0 if labels mark none."""
    labels: dict[str, int]
    """The number of words with each label."""
    truncated: int
    """The number of words past the training length, which count as wrong."""
    loss: float
    """Mean cross-entropy in nats per word."""

    def values(self) -> Iterator[Value]:
        if any(self.entities):
            counts = map(sum, zip(self.predicted, self.entities, strict=True))
            yield from by_item(ENTITY_F1, (2 * found for found in self.found), counts)
        yield from by_item(TOKEN_ACCURACY, self.right, self.words)
        yield Value(LOSS.name, self.loss)


@dataclass(frozen=True)
class Answered:
    """Measurements of one run on the held-out questions. Tuples have one number per context or title."""

    exact: tuple[int, ...]
    """The numbers of answers that match a reference exactly, once normalised."""
    f1: tuple[float, ...]
    """The sums of the F1 scores of the answers."""
    questions: tuple[int, ...]
    truncated: int
    """The number of questions whose answer the model does not see: it is past the training length, or in no window as a
    whole. If a question has several answers, the one that ends first counts, here and in the loss."""
    loss: float
    """Mean cross-entropy of the start and the end, in nats, over the answers that the model sees and all windows of
    contexts with several windows."""

    def values(self) -> Iterator[Value]:
        yield from by_item(F1, self.f1, self.questions)
        yield from by_item(EXACT, self.exact, self.questions)
        yield Value(LOSS.name, self.loss)


@dataclass(frozen=True, kw_only=True)
class TokenSpec(LabelledSpec):
    pooling: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class TagSpec(TokenSpec):
    Measured = Tagged

    data: str = option(
        "generated (names in sentences), or a file of columns: a word and its label in each line (CoNLL).",
        compare=False,
    )
    text_column: str | None = option("Number of the column of the words. Default: 1.", default=None, compare=False)
    label_column: str | None = option(
        "Number of the column of the labels. Default: the last.", default=None, compare=False
    )
    train_length: Count = option("Tokens per sentence; longer sentences are truncated.", MODEL)


@dataclass(frozen=True, kw_only=True)
class SpanSpec(TokenSpec):
    Measured = Answered

    data: str = option(
        "generated (who gave what to whom), a .json file in SQuAD's format, a .jsonl, .csv or .tsv file with context, "
        "question, answer and answer_start, hf:NAME, or squad, on the hub or in a folder of its files (squad:FOLDER).",
        compare=False,
    )
    train_length: Count = option(
        "Tokens per question and context, with two separators; longer contexts are truncated, or read in windows if "
        "--stride is given.",
        MODEL,
    )
    stride: Amount | None = option(
        "Tokens from the start of a window to that of the next, in contexts that are too long (BERT's doc_stride). 0 "
        "truncates them.",
        MODEL,
        default=None,
    )
