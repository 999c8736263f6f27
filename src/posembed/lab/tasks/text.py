"""Text classification: a small encoder, with texts padded to the longest of their batch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.lab.data.labelled import Example, Labelled
from posembed.lab.data.tokenizer import encode, read_tokenizer
from posembed.lab.encodings import build_encoding, split_name
from posembed.lab.model.decoder import PositionedModel
from posembed.lab.model.encoder import TextClassifier
from posembed.lab.questions.text import Classified, TextSpec
from posembed.lab.tasks.task import Task, draw_seed
from posembed.layers.base import PositionEncoding

if TYPE_CHECKING:
    from accelerate import Accelerator

TEXTS_AT_ONCE = 128


class TextClassification(Task[TextSpec, Classified]):
    """Trains and measures on ``data``. ``tokenizer`` is as in read_tokenizer."""

    def __init__(self, data: Labelled, tokenizer: str = "bytes") -> None:
        chosen = read_tokenizer(tokenizer, (example.text for example in data.train))
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

    def check(self, spec: TextSpec) -> None:
        split_name(spec.encoding, "encoder")

    def encoding(self, spec: TextSpec) -> PositionEncoding:
        return build_encoding(spec, "encoder")

    def model(self, spec: TextSpec, encoding: PositionEncoding) -> TextClassifier:
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

    def draw(self, spec: TextSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns token ids (B, L), lengths (B,) and labels (B,)."""
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        chosen = torch.randint(len(self.train), (spec.batch,), generator=generator)
        ids, lengths = self.train.batch(chosen, text_limit(spec))
        return ids[rows], lengths[rows], self.train_labels[chosen][rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        ids, lengths, labels = batch
        return F.cross_entropy(model(ids, lengths).float(), labels)

    def measure(self, spec: TextSpec, model: PositionedModel, accelerator: Accelerator) -> Classified:
        from sklearn.metrics import f1_score

        logits = self._logits(spec, model, accelerator.device)
        predicted = logits.argmax(dim=1)
        right = torch.zeros(int(self.documents.max()) + 1, dtype=torch.int64)
        right.index_add_(0, self.documents, (predicted == self.held_out_labels).long())
        counts = self.held_out_labels.bincount(minlength=len(self.labels)).tolist()
        f1 = f1_score(
            self.held_out_labels, predicted, labels=range(len(self.labels)), average="macro", zero_division=0.0
        )
        return Classified(
            right=tuple(right.tolist()),
            examples=tuple(self.documents.bincount().tolist()),
            classes=dict(zip(self.labels, counts, strict=True)),
            macro_f1=float(f1),
            loss=F.cross_entropy(logits, self.held_out_labels).item(),
        )

    def tokens_measured(self, spec: TextSpec) -> int:
        return int(self.held_out.lengths().clamp(max=text_limit(spec)).sum())

    @torch.no_grad()
    def _logits(self, spec: TextSpec, model: PositionedModel, device: torch.device) -> Tensor:
        """Returns the logits of all held-out examples, (N, C), float64 on the CPU. Batches hold similar lengths."""
        order = self.held_out.lengths().argsort(stable=True)
        logits = torch.empty(len(order), len(self.labels), dtype=torch.float64)
        for rows in order.split(TEXTS_AT_ONCE):
            ids, lengths = self.held_out.batch(rows, text_limit(spec))
            logits[rows] = model(ids.to(device), lengths.to(device)).double().cpu()
        return logits


def text_limit(spec: TextSpec) -> int:
    """Returns how many tokens of a text are read: the training length without the class token."""
    return spec.train_length - (spec.pooling == "cls")


def _numbered(examples: tuple[Example, ...]) -> Tensor:
    """Returns the number of each example's document, (N,), in order of first appearance."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(example.document, len(numbers)) for example in examples])
