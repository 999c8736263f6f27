"""Labels of words, and spans that answer questions: does the encoding matter where a model must say *where*?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from posembed.lab.by_seed import BySeed, Correct, Difference, accuracy_difference
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.questions.classification import require_room
from posembed.lab.runs.spec import MODEL, TrainingSpec
from posembed.settings import Amount, Count, option
from posembed.statistics import Estimate

Scores = dict[str, Correct]
"""Scores of one run by name, the main one first."""


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
    """The numbers of entities that the model marks, and of those that there are; 0 if the labels mark no entities."""
    labels: dict[str, int]
    """The number of words with each label."""
    truncated: int
    """The number of words past the training length, which count as wrong."""
    loss: float
    """Mean cross-entropy in nats per word."""

    def scores(self) -> Scores:
        accuracy = {"token accuracy": Correct(self.right, self.words)}
        if not any(self.entities):
            return accuracy
        counts = tuple(predicted + there for predicted, there in zip(self.predicted, self.entities, strict=True))
        return {"entity F1": Correct(tuple(2 * found for found in self.found), counts), **accuracy}


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

    def scores(self) -> Scores:
        return {"F1": Correct(self.f1, self.questions), "exact match": Correct(self.exact, self.questions)}


@dataclass(frozen=True, kw_only=True)
class TokenSpec(TrainingSpec):
    """The settings that the questions about tokens share."""

    pooling: ClassVar[str] = "none"

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


@dataclass(frozen=True, kw_only=True)
class TokenRow(Row):
    scores: dict[str, Estimate]
    """The scores by name, as shares; empty if every run failed."""
    differences: dict[str, Difference]
    """The scores minus the reference's, by name; empty for the reference itself."""

    @property
    def score(self) -> Estimate | None:
        """The main score."""
        return next(iter(self.scores.values()), None)

    @property
    def difference(self) -> Difference | None:
        """The difference of the main score."""
        return next(iter(self.differences.values()), None)


@dataclass(frozen=True, kw_only=True)
class TokenSummary(Summary):
    scores: tuple[str, ...]
    """The names of the scores, the main one first."""
    counts: dict[str, int]
    """What is held out: words, entities, questions, documents, ..., with their numbers."""
    labels: dict[str, int]
    """The number of held-out words with each label; empty for questions."""
    truncated: int
    """The number of held-out words or answers that the models do not see as a whole."""
    rows: tuple[TokenRow, ...]
    stride: int | None = None
    """The tokens between the starts of the windows of a long context; None if it is truncated."""


MeasuredTokensT = TypeVar("MeasuredTokensT", Tagged, Answered)
TokenSpecT = TypeVar("TokenSpecT", bound=TokenSpec)


def summarised(
    runs: Sequence[BySeed[MeasuredTokensT]],
    counts: Callable[[MeasuredTokensT], Mapping[str, int]],
) -> TokenSummary:
    """Summarises runs. ``counts`` returns what is held out, with numbers."""
    measured = next((m for each in runs for m in each.measured.values()), None)
    names = () if measured is None else tuple(measured.scores())
    rows = []
    for each in runs:
        scores = {name: each.mean(score_of(name)) for name in names}
        gained = {name: accuracy_difference(each, correct_of(name)) for name in names}
        row = TokenRow(
            **each.row,
            scores={name: score for name, score in scores.items() if score is not None},
            differences={name: difference for name, difference in gained.items() if difference is not None},
        )
        rows.append(row)
    return TokenSummary(
        scores=names,
        counts={} if measured is None else dict(counts(measured)),
        labels=measured.labels if isinstance(measured, Tagged) else {},
        truncated=0 if measured is None else measured.truncated,
        rows=tuple(rows),
    )


def correct_of(name: str) -> Callable[[Tagged | Answered], Correct]:
    return lambda measured: measured.scores()[name]


def score_of(name: str) -> Callable[[Tagged | Answered], float]:
    return lambda measured: measured.scores()[name].accuracy


class Tags(TrainedQuestion[TagSpec, Tagged, TokenSummary]):
    name, page = "tags", "tokens"
    group = "tasks"
    asks = "Does the position encoding matter for labelling words, such as named entities?"
    Spec = TagSpec
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    presets = presets_of("tags")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.tagged import load_tagged
        from posembed.lab.tasks.tokens import Tagging

        asked = {name: chosen.get(name) for name in ("text_column", "label_column", "test_data")}
        task = Tagging(load_tagged(chosen["data"], **asked), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def summary(self, runs: Sequence[BySeed[Tagged]], spec: TagSpec, reading: Compared) -> TokenSummary:
        return summarised(
            runs, lambda m: {"words": sum(m.words), "entities": sum(m.entities), "documents": len(m.words)}
        )


class Spans(TrainedQuestion[SpanSpec, Answered, TokenSummary]):
    name, page = "spans", "tokens"
    group = "tasks"
    asks = "Does the position encoding matter for finding the answer to a question in a text?"
    Spec = SpanSpec
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    presets = presets_of("spans")
    presets_help = "default, documents (BERT-base's size, for a GPU) or documents-quarter (a quarter of every size)."

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.answered import load_answered
        from posembed.lab.tasks.tokens import Answering

        require_room(chosen["train_length"], 2)
        chosen["stride"] = chosen.get("stride") or None  # one spelling of truncation, so that a folder continues
        task = Answering(load_answered(chosen["data"], test_data=chosen.get("test_data")), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def summary(self, runs: Sequence[BySeed[Answered]], spec: SpanSpec, reading: Compared) -> TokenSummary:
        found = summarised(runs, lambda m: {"questions": sum(m.questions), "documents": len(m.questions)})
        return dataclasses.replace(found, stride=spec.stride)
