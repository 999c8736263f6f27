"""Which of a few classes an image shows: a small ViT, then the same one on images of another grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.lab.data.images import Images, cut_patches, enlarged
from posembed.lab.encodings import build_encoding, split_name
from posembed.lab.model.decoder import PositionedModel
from posembed.lab.model.encoder import ImageClassifier
from posembed.lab.presets import merged, require_trainable
from posembed.lab.runs.spec import TrainingSpec
from posembed.lab.tasks.task import Task, draw_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

IMAGES_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class ImageSpec(TrainingSpec):
    """``train_length`` is the number of tokens of an image: its patches, and one in front if that is pooled."""

    QUESTION: ClassVar[str] = "images"

    data: str = field(compare=False)
    data_sha256: str
    patch: int
    """Its side in pixels."""
    train_size: int
    """The side in pixels of the images trained on."""
    test_sizes: tuple[int, ...]
    """Ascending: the sides to which held-out images are enlarged (or shrunk), the table resized to their grid."""
    pooling: str

    def grid(self, size: int) -> tuple[int, int]:
        """(height, width) in patches of images of this side."""
        return size // self.patch, size // self.patch


@dataclass(frozen=True)
class Recognised:
    """Of the held-out images, by the side to which they were drawn."""

    right: dict[int, str]
    """"1" for each image whose class was told, "0" for the others, in the order of the images."""
    loss: dict[int, float]
    """Mean cross-entropy in nats."""


class ImageClassification(Task[ImageSpec, Recognised]):
    """images: what to train and to measure on."""

    Spec = ImageSpec
    Measured = Recognised

    def __init__(self, images: Images) -> None:
        self.images = images
        self.description = f"images: {images.description}"

    def check(self, spec: ImageSpec) -> None:
        split_name(spec.encoding, "images")
        for size in (spec.train_size, *spec.test_sizes):
            if size < spec.patch or size % spec.patch:
                raise ArgumentError(
                    f"images of {size} x {size} pixels cannot be cut into patches of {spec.patch} x {spec.patch}; "
                    f"choose multiples of {spec.patch}"
                )

    def build(self, spec: ImageSpec) -> ImageClassifier:
        """The seed decides the weights; those that are not the encoding's are the same for every encoding."""
        torch.manual_seed(spec.seed)
        encoding = build_encoding(spec, "images", grid=spec.grid(spec.train_size))
        torch.manual_seed(spec.seed)
        return ImageClassifier(
            nn.Linear(spec.patch**2, spec.width),
            spec.width,
            len(self.images.classes),
            layers=spec.layers,
            heads=spec.heads,
            encoding=encoding,
            pooling=spec.pooling,
            dropout=spec.dropout,
        )

    def draw(self, spec: ImageSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Patches (B, N, p * p) and labels (B,)."""
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        chosen = torch.randint(len(self.images.train), (spec.batch,), generator=generator)[rows]
        images = enlarged(self.images.train[chosen], spec.train_size)
        return cut_patches(images, spec.patch), self.images.train_labels[chosen]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        patches, labels = batch
        return F.cross_entropy(model(patches).float(), labels)

    def measure(self, spec: ImageSpec, model: PositionedModel, accelerator: Accelerator) -> Recognised:
        trained = model.encoding
        right, loss = {}, {}
        for size in spec.test_sizes:
            model.encoding = trained.on_grid(spec.grid(size))
            logits = self._logits(spec, model, size, accelerator.device)
            told = logits.argmax(dim=1) == self.images.held_out_labels
            right[size] = "".join(str(int(one)) for one in told)
            loss[size] = F.cross_entropy(logits, self.images.held_out_labels).item()
        model.encoding = trained
        return Recognised(right, loss)

    def tokens_measured(self, spec: ImageSpec) -> int:
        return sum(len(self.images.held_out) * (size // spec.patch) ** 2 for size in spec.test_sizes)

    @torch.no_grad()
    def _logits(self, spec: ImageSpec, model: PositionedModel, size: int, device: torch.device) -> Tensor:
        """Of all held-out images drawn at this size: (N, C), float64 on the CPU."""
        patches = cut_patches(enlarged(self.images.held_out, size), spec.patch)
        parts = [model(part.to(device)).double().cpu() for part in patches.split(IMAGES_AT_ONCE)]
        return torch.cat(parts)


DEFAULTS: dict[str, Any] = {
    "data": "digits",
    "patch": 2,
    "train_size": 8,
    "test_sizes": (8, 10, 12, 16),
    "pooling": "cls",
    "layers": 2,
    "width": 32,
    "heads": 4,
    "dropout": 0.1,
    "steps": 1000,
    "batch": 32,
    "learning_rate": 5e-3,
    "warmup": 100,
    "weight_decay": 0.1,
    "clip": 1.0,
    "precision": "no",
}
"""Minutes on two cores with five seeds."""


def image_settings(images: Images, **overrides: Any) -> ImageSpec:
    """An ImageSpec without encoding and seed. Overrides that are None leave the default.

    Raises:
        ArgumentError: values that no run can have.
    """
    chosen = merged(DEFAULTS | {"train_size": images.size}, overrides)
    chosen["test_sizes"] = tuple(sorted({*chosen["test_sizes"], chosen["train_size"]}))
    require_trainable(chosen, "layers", "width", "heads", "steps", "batch", "patch", "train_size")
    cells = (chosen["train_size"] // chosen["patch"]) ** 2
    return ImageSpec(
        encoding="",
        seed=0,
        data_sha256=images.sha256,
        train_length=cells + (chosen["pooling"] == "cls"),
        window=0,
        ring=0,
        **chosen,
    )
