"""Which of a few classes a text is of: a small encoder, its texts padded to the longest of a batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.lab.data.labelled import Example, Labelled
from posembed.lab.data.text_ids import encode, text_tokenizer
from posembed.lab.encodings import build_encoding, split_name
from posembed.lab.model.decoder import PositionedModel
from posembed.lab.model.encoder import TextClassifier
from posembed.lab.presets import merged, require_trainable
from posembed.lab.runs.spec import TrainingSpec
from posembed.lab.tasks.task import Task, draw_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

TEXTS_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class ClassificationSpec(TrainingSpec):
    """``train_length``: the most tokens of a text, the one in front included; longer texts are cut."""

    QUESTION: ClassVar[str] = "text"

    data: str = field(compare=False)
    data_sha256: str
    """Of the examples, their split, and the tokenizer."""
    tokenizer: str = field(compare=False)
    pooling: str


@dataclass(frozen=True)
class Classified:
    """Of the held-out examples."""

    right: tuple[int, ...]
    """By document: how many of its examples were told."""
    examples: tuple[int, ...]
    """By document: how many it has."""
    classes: dict[str, int]
    """How many examples each class has."""
    macro_f1: float
    """The mean over classes of 2 precision recall / (precision + recall)."""
    loss: float
    """Mean cross-entropy in nats."""


class Classification(Task[ClassificationSpec, Classified]):
    """data: what to train and to measure on. tokenizer: as in text_tokenizer."""

    Spec = ClassificationSpec
    Measured = Classified

    def __init__(self, data: Labelled, tokenizer: str = "bytes") -> None:
        chosen = text_tokenizer(tokenizer, [example.text for example in data.train])
        self.vocabulary = chosen.vocabulary
        self.labels = data.labels
        self.train = encode(chosen, [example.text for example in data.train])
        self.held_out = encode(chosen, [example.text for example in data.held_out])
        self.train_labels, self.held_out_labels = (
            torch.tensor([data.labels.index(example.label) for example in side]) for side in (data.train, data.held_out)
        )
        self.documents = _numbered(data.held_out)
        self.sha256 = hashlib.sha256((data.sha256 + chosen.sha256).encode()).hexdigest()
        longest = int(self.train.lengths().max())
        self.description = (
            f"text: {data.description}\n"
            f"      {self.train.lengths().double().mean():.0f} tokens an example, {longest:,} the longest"
        )

    def check(self, spec: ClassificationSpec) -> None:
        split_name(spec.encoding, "encoder")

    def build(self, spec: ClassificationSpec) -> TextClassifier:
        """The seed decides the weights; those that are not the encoding's are the same for every encoding."""
        torch.manual_seed(spec.seed)
        encoding = build_encoding(spec, "encoder")
        torch.manual_seed(spec.seed)
        return TextClassifier(
            nn.Embedding(self.vocabulary, spec.width),
            spec.width,
            len(self.labels),
            layers=spec.layers,
            heads=spec.heads,
            encoding=encoding,
            pooling=spec.pooling,
            dropout=spec.dropout,
        )

    def draw(
        self, spec: ClassificationSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Token ids (B, L), lengths (B,) and labels (B,)."""
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        chosen = torch.randint(len(self.train), (spec.batch,), generator=generator)
        ids, lengths = self.train.batch(chosen, text_limit(spec))
        return ids[rows], lengths[rows], self.train_labels[chosen][rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        ids, lengths, labels = batch
        return F.cross_entropy(model(ids, lengths).float(), labels)

    def measure(self, spec: ClassificationSpec, model: PositionedModel, accelerator: Accelerator) -> Classified:
        from sklearn.metrics import f1_score

        logits = self._logits(spec, model, accelerator.device)
        told = logits.argmax(dim=1)
        right = torch.zeros(int(self.documents.max()) + 1, dtype=torch.int64)
        right.index_add_(0, self.documents, (told == self.held_out_labels).long())
        counts = self.held_out_labels.bincount(minlength=len(self.labels)).tolist()
        f1 = f1_score(self.held_out_labels, told, labels=range(len(self.labels)), average="macro", zero_division=0.0)
        return Classified(
            right=tuple(right.tolist()),
            examples=tuple(self.documents.bincount().tolist()),
            classes=dict(zip(self.labels, counts, strict=True)),
            macro_f1=float(f1),
            loss=F.cross_entropy(logits, self.held_out_labels).item(),
        )

    def tokens_measured(self, spec: ClassificationSpec) -> int:
        return int(self.held_out.lengths().clamp(max=text_limit(spec)).sum())

    @torch.no_grad()
    def _logits(self, spec: ClassificationSpec, model: PositionedModel, device: torch.device) -> Tensor:
        """Of all held-out examples: (N, C), float64 on the CPU. Those of like lengths go together."""
        order = self.held_out.lengths().argsort(stable=True)
        logits = torch.empty(len(order), len(self.labels), dtype=torch.float64)
        for rows in order.split(TEXTS_AT_ONCE):
            ids, lengths = self.held_out.batch(rows, text_limit(spec))
            logits[rows] = model(ids.to(device), lengths.to(device)).double().cpu()
        return logits


def text_limit(spec: ClassificationSpec) -> int:
    """How many tokens of a text are read: all but the one in front, where there is one."""
    return spec.train_length - (spec.pooling == "cls")


def _numbered(examples: tuple[Example, ...]) -> Tensor:
    """(N,): the number of each example's document, in the order in which documents come."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(example.document, len(numbers)) for example in examples])


DEFAULTS: dict[str, Any] = {
    "data": "stdlib",
    "tokenizer": "bpe:2000",
    "pooling": "cls",
    "train_length": 128,
    "layers": 2,
    "width": 64,
    "heads": 4,
    "dropout": 0.1,
    "steps": 300,
    "batch": 32,
    "learning_rate": 3e-3,
    "warmup": 30,
    "weight_decay": 0.1,
    "clip": 1.0,
    "precision": "no",
}


def classification_settings(task: Classification, **overrides: Any) -> ClassificationSpec:
    """A ClassificationSpec without encoding and seed. Overrides that are None leave the default.

    Raises:
        ArgumentError: values that no run can have.
    """
    chosen = merged(DEFAULTS, overrides)
    require_trainable(chosen, "layers", "width", "heads", "steps", "batch")
    if chosen["train_length"] < 2:
        raise ArgumentError(f"train_length must be at least 2, got {chosen['train_length']}")
    return ClassificationSpec(encoding="", seed=0, data_sha256=task.sha256, window=0, ring=0, **chosen)
