"""Which position encodings suit images, and which still work on another grid?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posembed.lab.question import Compared, Row, Summary, TrainedQuestion
from posembed.lab.questions.by_seed import BySeed, Correct, Difference, accuracy_difference, by_name
from posembed.lab.runs.spec import MODEL, TrainingSpec, option, require_trainable
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.runs.results import RunResult
    from posembed.lab.tasks.images import ImageClassification, Recognised


# Minutes on two cores with five seeds.
DEFAULTS = {
    "data": "digits",
    "patch": 2,
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
PRESETS = {"default": DEFAULTS}


@dataclass(frozen=True, kw_only=True)
class ImageSpec(TrainingSpec):
    """``train_length`` is the number of tokens of an image: its patches, and the class token if there is one."""

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
    """To the reference; empty for the reference itself."""


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


class Images(TrainedQuestion["ImageSpec", "Recognised", ImageSummary]):
    name = page = "images"
    group = "tasks"
    asks = "Which position encodings suit images, and which still work on another grid?"
    Spec = ImageSpec
    usual = ("learned-1d", "learned-2d", "factorized", "sinusoidal", "sinusoidal-2d", "none")
    usual_reference = "learned-1d"
    names_help = "Encodings to compare, joined by commas."
    presets = PRESETS

    def check_name(self, name: str) -> None:
        from posembed.lab.encodings import split_name

        split_name(name, "images")

    def prepare(self, chosen: dict[str, Any]) -> tuple[ImageClassification, ImageSpec]:
        from posembed.lab.data.images import load_images
        from posembed.lab.tasks.images import ImageClassification

        require_trainable(chosen, "patch")
        images = load_images(chosen["data"])
        chosen["test_sizes"] = tuple(sorted({*chosen["test_sizes"], images.size}))
        tokens = (images.size // chosen["patch"]) ** 2 + (chosen["pooling"] == "cls")
        spec = ImageSpec(
            question=self.name,
            encoding="",
            seed=0,
            data_sha256=images.sha256,
            train_size=images.size,
            train_length=tokens,
            **chosen,
        )
        return ImageClassification(images), spec

    def task_type(self) -> type[ImageClassification]:
        from posembed.lab.tasks.images import ImageClassification

        return ImageClassification

    def summarise(
        self, results: Sequence[RunResult[ImageSpec, Recognised]], reading: Compared | None = None
    ) -> ImageSummary:
        reference, groups = self.reference(results, reading or Compared()), by_name(results)
        spec = results[0].spec
        right = next((text for r in results if r.measurements for text in r.measurements.right.values()), "")
        return ImageSummary(
            reference=reference,
            train_size=spec.train_size,
            patch=spec.patch,
            test_sizes=spec.test_sizes,
            examples=len(right),
            rows=tuple(
                image_row(runs, None if name == reference else groups[reference or ""], spec.test_sizes)
                for name, runs in groups.items()
            ),
        )


def image_row(runs: BySeed[Recognised], reference: BySeed[Recognised] | None, sizes: Sequence[int]) -> ImageRow:
    def correct(measured: Recognised, size: int) -> Correct:  # each image is a document
        right = tuple(map(int, measured.right[size]))
        return Correct(right, (1,) * len(right))

    accuracy = {n: runs.mean(lambda m, n=n: correct(m, n).accuracy) for n in sizes}  # type: ignore[misc]
    difference = {
        n: accuracy_difference(runs, reference, lambda m, n=n: correct(m, n))  # type: ignore[misc]
        for n in sizes
    }
    return ImageRow(
        **runs.row,
        accuracy={size: value for size, value in accuracy.items() if value is not None},
        difference={size: value for size, value in difference.items() if value is not None},
    )
