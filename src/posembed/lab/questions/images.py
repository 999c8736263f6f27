"""Which position encodings suit images, and which still work on another grid?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from posembed.lab.by_seed import BySeed, Correct, Difference, accuracy_difference
from posembed.lab.question import COMMON, Compared, Row, Summary, TrainedQuestion
from posembed.lab.runs.spec import MODEL, TrainingSpec, option
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.tasks.classification import ImageClassification

PRESETS = {
    "default": COMMON  # minutes on two cores with five seeds
    | {"data": "digits", "patch": 2, "test_sizes": (8, 10, 12, 16), "pooling": "cls"}
    | {"layers": 2, "width": 32, "heads": 4, "dropout": 0.1, "steps": 1000, "learning_rate": 5e-3, "warmup": 100}
}


@dataclass(frozen=True)
class Recognised:
    """Measurements on the held-out images, by the side to which they were resized."""

    right: dict[int, str]
    """"1" for each correctly classified image, "0" for the others, in the order of the images."""
    loss: dict[int, float]
    """Mean cross-entropy in nats."""

    def correct(self, size: int) -> Correct:
        """Returns the correct answers; each image counts as a document."""
        right = tuple(map(int, self.right[size]))
        return Correct(right, (1,) * len(right))


@dataclass(frozen=True, kw_only=True)
class ImageSpec(TrainingSpec):
    """``train_length`` is the number of tokens of an image: its patches, and the class token if there is one."""

    Measured = Recognised

    data: str = option("digits: scikit-learn's, 8 x 8 pixels.", compare=False)
    data_sha256: str
    patch: int = option("Side of a patch, in pixels.", MODEL)
    train_size: int
    """The side of the training images, in pixels."""
    test_sizes: tuple[int, ...] = option(
        "Sides to which held-out images are resized, in pixels, joined by commas.", MODEL
    )
    """Ascending."""
    pooling: str = option("cls (a token in front) or mean.", MODEL)

    def grid(self, size: int) -> tuple[int, int]:
        """Returns (height, width) in patches of an image with this side."""
        return size // self.patch, size // self.patch


@dataclass(frozen=True, kw_only=True)
class ImageRow(Row):
    """One encoding, by the side of the images in pixels."""

    accuracy: dict[int, Estimate]
    """Empty if every run failed."""
    difference: dict[int, Difference]
    """The accuracy minus the reference's, by side; empty for the reference itself."""


@dataclass(frozen=True, kw_only=True)
class ImageSummary(Summary):
    train_size: int
    patch: int
    test_sizes: tuple[int, ...]
    examples: int
    """Held-out images."""
    rows: tuple[ImageRow, ...]

    @property
    def farthest(self) -> int:
        """The tested side whose grid differs most from that of training."""
        return max(self.test_sizes, key=lambda size: (abs(size - self.train_size), size))


class Images(TrainedQuestion[ImageSpec, Recognised, ImageSummary]):
    name = page = "images"
    group = "tasks"
    asks = "Which position encodings suit images, and which still work on another grid?"
    Spec = ImageSpec
    use = "images"
    usual = ("learned-1d", "learned-2d", "factorized", "sinusoidal", "sinusoidal-2d", "none")
    usual_reference = "learned-1d"
    presets = PRESETS
    counts = ("patch",)

    def load(self, chosen: dict[str, Any]) -> tuple[ImageClassification, dict[str, Any]]:
        from posembed.lab.data.images import load_images
        from posembed.lab.tasks.classification import ImageClassification

        images = load_images(chosen["data"])
        chosen["test_sizes"] = tuple(sorted({*chosen["test_sizes"], images.size}))
        tokens = (images.size // chosen["patch"]) ** 2 + (chosen["pooling"] == "cls")
        found = {"data_sha256": images.sha256, "train_size": images.size, "train_length": tokens}
        return ImageClassification(images), found

    def summary(self, runs: Sequence[BySeed[Recognised]], spec: ImageSpec, reading: Compared) -> ImageSummary:
        right = next((text for each in runs for m in each.measured.values() for text in m.right.values()), "")
        return ImageSummary(
            train_size=spec.train_size,
            patch=spec.patch,
            test_sizes=spec.test_sizes,
            examples=len(right),
            rows=tuple(image_row(each, spec.test_sizes) for each in runs),
        )


def image_row(runs: BySeed[Recognised], sizes: Sequence[int]) -> ImageRow:
    accuracy = runs.means(lambda m: {size: m.correct(size).accuracy for size in sizes}, sizes)
    difference = {n: accuracy_difference(runs, runs.reference, methodcaller("correct", n)) for n in sizes}
    return ImageRow(
        **runs.row,
        accuracy={size: value for size, value in accuracy.items() if value is not None},
        difference={size: value for size, value in difference.items() if value is not None},
    )
