"""The settings of labelling words and finding answers, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL
from posembed.lab.tasks.classification_specs import LabelledSpec
from posembed.settings import Amount, Count, option

ENTITY_F1, TOKEN_ACCURACY = metrics("tags")
F1, EXACT = metrics("spans")


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
