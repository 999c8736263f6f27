"""Labels of words, and spans that answer questions: does the encoding matter where a model must say *where*?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from posembed.lab.found import Found, model_size
from posembed.lab.question import Loaded, TrainedQuestion, presets_of
from posembed.lab.questions.classification import LOSS, most_frequent, require_room
from posembed.lab.runs.spec import MODEL, TrainingSpec
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric
from posembed.settings import Amount, Count, option
from posembed.words import listed

ENTITY_F1 = Metric(
    "entity F1",
    "An entity is correct if its first word, its last word and its type are. F1 is the harmonic mean of the share of "
    "the marked entities that are correct and the share of the entities that are found.",
    better="high",
    kind="share",
)
TOKEN_ACCURACY = Metric(
    "token accuracy",
    "Token accuracy is the share of words with the correct label.",
    better="high",
    kind="share",
    told=True,
)
F1 = Metric(
    "F1",
    "F1 compares the words of an answer with those of the references, as in SQuAD's evaluation script; the table has "
    "the mean over questions.",
    better="high",
    kind="share",
)
EXACT = Metric(
    "exact match",
    "Exact match is the share of answers that equal a reference, apart from case, punctuation and articles.",
    better="high",
    kind="share",
    told=True,
)


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

    def values(self) -> Iterator[Value]:
        if any(self.entities):
            for item, (found, *counts) in enumerate(zip(self.found, self.predicted, self.entities, strict=True)):
                yield Value(ENTITY_F1.name, 2 * found, item=item, weight=sum(counts))
        for item, (right, words) in enumerate(zip(self.right, self.words, strict=True)):
            yield Value(TOKEN_ACCURACY.name, right, item=item, weight=words)
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
        for metric, sums in ((F1, self.f1), (EXACT, self.exact)):
            for item, (value, questions) in enumerate(zip(sums, self.questions, strict=True)):
                yield Value(metric.name, value, item=item, weight=questions)
        yield Value(LOSS.name, self.loss)


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


def read_as(spec: TokenSpec, unit: str) -> str:
    """Returns how many tokens of an example a model reads, and how it reads longer ones."""
    stride = spec.stride if isinstance(spec, SpanSpec) else None
    if stride is None:
        return f"{unit} per batch, truncated to {spec.train_length:,} tokens"
    return (
        f"windows of at most {spec.train_length:,} tokens per batch, which start {stride:,} tokens apart in contexts "
        "that do not fit into one"
    )


def trained_on(found: Found, task: str, unit: str, tested: Mapping[str, int]) -> str:
    """Describes what was trained, and on how many things of each kind it is tested."""
    spec, known = found.spec, listed([f"{count:,} {what}" for what, count in tested.items() if count])
    held_out = "" if found.measured is None else f" The model is tested on {known}, all held out."
    return (
        f"Each run trains a small Transformer encoder ({model_size(spec)}) to {task} ({spec.data}): {spec.steps:,} "
        f"steps, {spec.batch} {read_as(spec, unit)}.{held_out} Only the position encoding differs."
    )


class Tags(TrainedQuestion[TagSpec, Tagged]):
    name = "tags"
    metrics = (ENTITY_F1, TOKEN_ACCURACY, LOSS)
    loss_unit = "per label"
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

    def about(self, found: Found) -> str:
        m = found.measured
        tested = {} if m is None else {"words": sum(m.words), "entities": sum(m.entities), "documents": len(m.words)}
        return trained_on(found, "label the words of sentences", "sentences", tested)

    def remarks(self, found: Found) -> Iterable[str]:
        if found.measured is not None:
            yield most_frequent("label", found.measured.labels, "words")
            if truncated := found.measured.truncated:
                yield f"{truncated:,} of these words are past the training length and count as wrong."

    def counted(self, found: Found) -> Mapping[str, Mapping[str, int]]:
        return {} if found.measured is None else {"The labels of the held-out words": found.measured.labels}


class Spans(TrainedQuestion[SpanSpec, Answered]):
    name = "spans"
    metrics = (F1, EXACT, LOSS)
    loss_unit = "per label"
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

    def about(self, found: Found) -> str:
        m = found.measured
        tested = {} if m is None else {"questions": sum(m.questions), "documents": len(m.questions)}
        return trained_on(found, "find the answers to questions in texts", "questions", tested)

    def remarks(self, found: Found) -> Iterable[str]:
        if found.measured is not None and (unseen := found.measured.truncated):
            where = "past the training length; --stride makes it read on"
            if (stride := found.spec.stride) is not None:
                where = f"in none of the windows that start {stride:,} tokens apart; a smaller --stride may help"
            yield f"For {unseen:,} of these questions, the model does not see the answer, which is {where}."
