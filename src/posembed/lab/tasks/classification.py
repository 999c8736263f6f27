"""Classification of texts or images with a small encoder. Images are tested on several grids of patches."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError, DataError
from posembed.lab.data.labelled import Example, Examples
from posembed.lab.data.tokenizer import Bytes, Loaded, Pairs, Texts, encode, read_tokenizer
from posembed.lab.metrics import Measured, by_item, by_x
from posembed.lab.model import Classifier, ImageClassifier, PositionedModel
from posembed.lab.tasks.classification_specs import ACCURACY, LOSS, MACRO_F1, ImageSpec, SpanSpec, TagSpec, TextSpec
from posembed.lab.tasks.task import Task, build_encoding, torch_seed
from posembed.layers.base import PositionEncoding
from posembed.measure.frame import Value

TEXTS_AT_ONCE, IMAGES_AT_ONCE = 128, 512
HELD_OUT_IMAGES = 0.25  # as a share of all images
ClassifierSpecT = TypeVar("ClassifierSpecT", TextSpec, TagSpec, SpanSpec, ImageSpec)


class Classification(Task[ClassifierSpecT]):
    """A classification task: the model, loss and logits. Subclasses define the embedding, batches and measurements."""

    classes: Sequence[str]
    train_labels: Tensor
    held_out_labels: Tensor
    Model = Classifier
    segments = False
    """Whether the model reads pairs of texts in segments."""

    @abstractmethod
    def embedding(self, spec: ClassifierSpecT) -> nn.Module:
        """Returns the model's embedding, with random weights."""

    def model(self, spec: ClassifierSpecT, encoding: PositionEncoding) -> PositionedModel:
        return self.Model(
            self.embedding(spec),
            spec.width,
            len(self.classes),
            layers=spec.layers,
            heads=spec.heads,
            encoding=encoding,
            pooling=spec.pooling,
            dropout=spec.dropout,
            segments=self.segments,
        )

    def chosen(self, spec: ClassifierSpecT, step: int, among: Tensor | None = None) -> Tensor:
        """Returns the indices (B,) of the training examples in a step's batch. ``among``: the indices to choose from;
        None means all."""
        generator = torch.Generator().manual_seed(torch_seed(spec, step))
        drawn = torch.randint(len(self.train_labels if among is None else among), (spec.batch,), generator=generator)
        return drawn if among is None else among[drawn]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        *inputs, labels = batch
        return F.cross_entropy(model(*inputs).float(), labels)

    @torch.no_grad()
    def logits(self, model: nn.Module, batches: Iterable[Sequence[Tensor]], device: torch.device) -> Tensor:
        """Returns the logits (N, C) of all examples in the batches, in float64 on the CPU."""
        return torch.cat([model(*(tensor.to(device) for tensor in batch)).double().cpu() for batch in batches])


class OfTexts(Classification[ClassifierSpecT]):
    """A classification task that reads tokens."""

    vocabulary: int
    documents: Sequence[int]
    """The document number of each held-out example. Documents are numbered in the order of first appearance."""

    def encoding(self, spec: ClassifierSpecT) -> PositionEncoding:
        return build_encoding(spec, causal=False)

    def embedding(self, spec: ClassifierSpecT) -> nn.Embedding:
        return nn.Embedding(self.vocabulary, spec.width)

    def describe(
        self, kind: str, data: Examples[Any], tokenizer: Bytes | Loaded, lengths: Tensor, example: str
    ) -> None:
        """Sets the hash, the documents and the description."""
        numbers: dict[str, int] = {}
        self.documents = [numbers.setdefault(each.document, len(numbers)) for each in data.held_out]
        self.sha256 = hashlib.sha256((data.sha256 + tokenizer.sha256).encode()).hexdigest()
        mean = f"{lengths.double().mean():.0f} tokens per {example} on average, at most {int(lengths.max()):,}"
        self.description = f"{kind}: {data.description}\n{' ' * len(kind)}  {mean}"


def summed(values: Iterable[float], documents: Sequence[int]) -> list[Any]:
    """Returns the sums of the values by document."""
    sums: list[Any] = [0] * (max(documents) + 1)
    for value, document in zip(values, documents, strict=True):
        sums[document] += value
    return sums


class TextClassification(OfTexts[TextSpec]):
    """Classification of labelled texts. ``tokenizer``: a name that ``read_tokenizer`` accepts."""

    def __init__(self, data: Examples[Example], tokenizer: str = "bytes") -> None:
        chosen = read_tokenizer(tokenizer, texts_of(data.train))
        self.vocabulary = chosen.vocabulary
        self.classes = data.labels
        self.train, self.held_out = (encode_examples(chosen, side) for side in (data.train, data.held_out))
        if isinstance(self.train, Pairs):
            self.segments = True
            self.vocabulary += 1  # the separator
        self.train_labels, self.held_out_labels = (
            torch.tensor([data.labels.index(example.label) for example in side]) for side in (data.train, data.held_out)
        )
        self.describe("text", data, chosen, self.train.lengths(), "example")

    def draw(self, spec: TextSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns token ids (B, L), lengths (B,) and labels (B,). Texts are padded to the longest of the batch. For
        pairs in segments, the segments (B, L) follow the lengths."""
        chosen = self.chosen(spec, step)
        inputs = self.train.batch(chosen, text_limit(spec))
        return *(tensor[rows] for tensor in inputs), self.train_labels[chosen][rows]

    def measure(self, spec: TextSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        from sklearn.metrics import f1_score

        order = self.held_out.lengths().argsort(stable=True)  # batches hold similar lengths
        batches = (self.held_out.batch(some, text_limit(spec)) for some in order.split(TEXTS_AT_ONCE))
        logits = self.logits(model, batches, accelerator.device)[order.argsort()]
        labels, predicted = self.held_out_labels, logits.argmax(dim=1)
        counts = labels.bincount(minlength=len(self.classes)).tolist()
        f1 = f1_score(labels, predicted, labels=range(len(self.classes)), average="macro", zero_division=0.0)
        right, examples = (
            summed(of, self.documents) for of in ((predicted == labels).long().tolist(), [1] * len(labels))
        )
        loss = F.cross_entropy(logits, labels).item()
        return Measured(
            (*by_item(ACCURACY, right, examples), Value(MACRO_F1.name, float(f1)), Value(LOSS.name, loss)),
            sizes={f"examples of {len(self.classes)} classes": len(labels), "documents": len(right)},
            classes=dict(zip(self.classes, counts, strict=True)),
        )

    def tokens_measured(self, spec: TextSpec) -> int:
        return int(self.held_out.lengths().clamp(max=text_limit(spec)).sum())


def texts_of(examples: Sequence[Example]) -> Iterator[str]:
    """Yields the texts of all examples, both texts of a pair."""
    return (text for example in examples for text in (example.text, example.second) if text is not None)


def encode_examples(tokenizer: Bytes | Loaded, examples: Sequence[Example]) -> Texts | Pairs:
    first = encode(tokenizer, [example.text for example in examples])
    if examples[0].second is None:
        return first
    second = encode(tokenizer, [example.second or "" for example in examples])
    return Pairs(first, second, separator=tokenizer.vocabulary)


def text_limit(spec: TextSpec) -> int:
    """Returns the maximum number of tokens read from a text: the training length, minus 1 if there is a class token."""
    return spec.train_length - (spec.pooling == "cls")


class ImageClassification(Classification[ImageSpec]):
    """Classification of scikit-learn's digits (1,797 images of 8 x 8 pixels; Alpaydin and Kaynak 1998) by a ViT.

    Images are (N, 8, 8) in float32, with mean 0 and variance 1 over the training part. The last quarter is held out.
    Neighbouring images often have the same writer, so a random split would test on writers of the training images.

    Raises:
        DataError: ``data`` is not "digits".
    """

    Model = ImageClassifier

    def __init__(self, data: str = "digits") -> None:
        if data != "digits":
            raise DataError(f'unknown images {data!r}; expected "digits" (from scikit-learn)')
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = torch.from_numpy(digits.images).float(), torch.from_numpy(digits.target).long()
        cut = round(len(images) * (1 - HELD_OUT_IMAGES))
        mean, std = images[:cut].mean(), images[:cut].std()
        self.train, self.held_out = ((part - mean) / std for part in (images[:cut], images[cut:]))
        self.train_labels, self.held_out_labels = labels[:cut], labels[cut:]
        self.size = images.size(1)
        self.classes = tuple(map(str, digits.target_names))
        self.sha256 = hashlib.sha256(digits.images.tobytes() + digits.target.tobytes()).hexdigest()
        self.description = (
            f"images: scikit-learn's digits, 8 x 8 pixels: {cut:,} to train on, the last {len(self.held_out):,} held "
            "out"
        )

    def check(self, spec: ImageSpec) -> None:
        for size in (spec.train_size, *spec.test_sizes, *(spec.train_sizes or ())):
            if size < spec.patch or size % spec.patch:
                raise ArgumentError(
                    f"images of {size} x {size} pixels cannot be cut into patches of {spec.patch} x {spec.patch}; "
                    f"choose multiples of {spec.patch}"
                )

    def encoding(self, spec: ImageSpec) -> PositionEncoding:
        return build_encoding(spec, grid=spec.grid(spec.train_size), causal=False)

    def embedding(self, spec: ImageSpec) -> nn.Linear:
        return nn.Linear(spec.patch**2, spec.width)

    def draw(self, spec: ImageSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns patches (B, N, p * p) and labels (B,)."""
        chosen, sizes = self.chosen(spec, step)[rows], spec.train_sizes or (spec.train_size,)
        generator = torch.Generator().manual_seed(torch_seed(spec, step, process=1))
        size = sizes[int(torch.randint(len(sizes), (), generator=generator))]
        return patches(self.train[chosen], size, spec.patch), self.train_labels[chosen]

    def measure(self, spec: ImageSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        right: list[Value] = []
        loss: dict[int, float | None] = {}
        for size in spec.test_sizes:
            held_out = patches(self.held_out, size, spec.patch).split(IMAGES_AT_ONCE)
            logits = self.logits(model, ((some,) for some in held_out), accelerator.device)
            correct = logits.argmax(dim=1) == self.held_out_labels
            right += (Value(ACCURACY.name, one, size, item) for item, one in enumerate(correct.long().tolist()))
            loss[size] = F.cross_entropy(logits, self.held_out_labels).item()
        return Measured((*right, *by_x({LOSS: loss})), sizes={"images": len(self.held_out_labels)})

    def tokens_measured(self, spec: ImageSpec) -> int:
        return sum(len(self.held_out_labels) * (size // spec.patch) ** 2 for size in spec.test_sizes)


def patches(images: Tensor, size: int, patch: int) -> Tensor:
    """Resizes images (B, s, s) to (B, size, size) and splits them into patches (B, (size / p)^2, p * p), row by row.

    Resizing is bilinear with ``align_corners=False``; shrinking is also antialiased.
    """
    if size != images.size(1):
        images = F.interpolate(images.unsqueeze(1), (size, size), mode="bilinear", antialias=True).squeeze(1)
    return images.unfold(1, patch, patch).unfold(2, patch, patch).flatten(3).flatten(1, 2)
