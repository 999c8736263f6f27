"""The settings of classifying texts, words, spans and images, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posembed.errors import ArgumentError
from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL, TrainingSpec
from posembed.settings import Amount, Ascending, Count, TwoOrMore, option

ACCURACY, MACRO_F1, LOSS = metrics("accuracy", "macro F1", "loss of labels")
ENTITY_F1, TOKEN_ACCURACY = metrics("tags")
F1, EXACT = metrics("spans")


@dataclass(frozen=True, kw_only=True)
class LabelledSpec(TrainingSpec):
    """The settings that the questions about labelled texts share."""

    data: str
    data_sha256: str
    """Hash of the examples, their split, and the tokenizer."""
    test_data: str | None = option(
        "A file with the held-out part. Default: a fifth of the data, or its own held-out part.",
        default=None,
        compare=False,
    )
    tokenizer: str = option(
        "bytes, bpe:N (N tokens learned from the data), a tokenizer.json, or a name on the hub.", compare=False
    )


@dataclass(frozen=True, kw_only=True)
class TextSpec(LabelledSpec):
    data: str = option(
        "stdlib (classify source by package), a .csv, .tsv or .jsonl file, hf:NAME, or sst2, mnli, mnli-mismatched, "
        "qnli or qqp, on the hub or in a folder of GLUE's files (mnli:FOLDER).",
        compare=False,
    )
    text_column: str | None = option(
        "Column of the text: a name, or a number (1) in a file without a header. Several, separated by commas, are "
        "read as --pairs says. Default: a column with an obvious name.",
        default=None,
        compare=False,
    )
    label_column: str | None = option(
        "Column of the label. Default: a column with an obvious name.", default=None, compare=False
    )
    pairs: str | None = option(
        "How two text columns are read: joined (as the lines of one text), or segments (first, separator, second, "
        "separator, and an embedding of the segment, as in BERT). Default: segments for mnli, qnli and qqp; joined "
        "otherwise.",
        MODEL,
        default=None,
    )
    train_length: TwoOrMore = option("Tokens per text, the class token included; longer texts are truncated.", MODEL)
    pooling: str = option("cls (a token in front) or mean.", MODEL)


def require_room(train_length: int, others: int) -> None:
    """Raises ArgumentError if ``others`` tokens (separators, class token) leave no room for a token of each text."""
    if train_length < others + 2:
        raise ArgumentError(
            f"train_length must be at least {others + 2} for pairs of texts with their separators, got {train_length}"
        )


@dataclass(frozen=True, kw_only=True)
class TokenSpec(LabelledSpec):
    pooling: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class TagSpec(TokenSpec):
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


@dataclass(frozen=True, kw_only=True)
class ImageSpec(TrainingSpec):
    """Settings of an image run. ``train_length`` counts the tokens of an image: its patches and any class token."""

    data: str = option("digits (from scikit-learn, 8 x 8 pixels).", compare=False)
    data_sha256: str
    patch: Count = option("Side of a patch, in pixels.", MODEL)
    train_size: int
    """The side of the training images, in pixels."""
    test_sizes: Ascending[Count] = option(
        "Side lengths in pixels that the held-out images are resized to, separated by commas.", MODEL
    )
    train_sizes: Ascending[Count] | None = option(
        "Side lengths in pixels, separated by commas, of which one is drawn for the images of each training step. "
        "Default: the images' own.",
        default=None,
    )
    pooling: str = option("cls (a token in front) or mean.", MODEL)

    def grid(self, size: int) -> tuple[int, int]:
        """Returns the grid (height, width), in patches, of an image with this side in pixels."""
        return size // self.patch, size // self.patch
