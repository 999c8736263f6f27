"""Image classification: a small ViT, tested on its training grid and on others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.lab.data.images import Images, cut_patches, enlarged
from posembed.lab.encodings import build_encoding, split_name
from posembed.lab.model.decoder import PositionedModel
from posembed.lab.model.encoder import ImageClassifier
from posembed.lab.questions.images import ImageSpec
from posembed.lab.tasks.task import Task, draw_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

IMAGES_AT_ONCE = 512


@dataclass(frozen=True)
class Recognised:
    """Measurements on the held-out images, by the side to which they were resized."""

    right: dict[int, str]
    """"1" for each correctly classified image, "0" for the others, in the order of the images."""
    loss: dict[int, float]
    """Mean cross-entropy in nats."""


class ImageClassification(Task[ImageSpec, Recognised]):
    """Trains and measures on ``images``."""

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
        """Returns the model. The seed decides its weights; all but the encoding's are the same for every encoding."""
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
        """Returns patches (B, N, p * p) and labels (B,)."""
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
            correct = logits.argmax(dim=1) == self.images.held_out_labels
            right[size] = "".join(str(int(one)) for one in correct)
            loss[size] = F.cross_entropy(logits, self.images.held_out_labels).item()
        model.encoding = trained
        return Recognised(right, loss)

    def tokens_measured(self, spec: ImageSpec) -> int:
        return sum(len(self.images.held_out) * (size // spec.patch) ** 2 for size in spec.test_sizes)

    @torch.no_grad()
    def _logits(self, spec: ImageSpec, model: PositionedModel, size: int, device: torch.device) -> Tensor:
        """Returns the logits of all held-out images at this size, (N, C), float64 on the CPU."""
        patches = cut_patches(enlarged(self.images.held_out, size), spec.patch)
        parts = [model(part.to(device)).double().cpu() for part in patches.split(IMAGES_AT_ONCE)]
        return torch.cat(parts)
