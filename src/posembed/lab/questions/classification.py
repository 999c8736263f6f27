"""Classification: does the position encoding matter for texts, and which encodings suit images on other grids?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed, Correct, Difference, accuracy_difference
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.runs.spec import MODEL, TrainingSpec
from posembed.settings import Ascending, Count, TwoOrMore, option
from posembed.statistics import Estimate

UNEVEN = 1.5
"""Classes are uneven if the largest is more than this many times as large as the smallest."""


@dataclass(frozen=True)
class Classified(Correct):
    """Measurements of one run on the held-out examples."""

    classes: dict[str, int]
    """The number of examples of each class."""
    macro_f1: float
    """The mean over classes of the F1 score, 2 precision recall / (precision + recall)."""
    loss: float
    """Mean cross-entropy in nats."""


@dataclass(frozen=True, kw_only=True)
class TextSpec(TrainingSpec):
    Measured = Classified

    data: str = option(
        "stdlib (classify source by package), a .csv, .tsv or .jsonl file, hf:NAME, or sst2, mnli, mnli-mismatched, "
        "qnli or qqp, on the hub or in a folder of GLUE's files (mnli:FOLDER).",
        compare=False,
    )
    data_sha256: str
    """Hash of the examples, their split, and the tokenizer."""
    test_data: str | None = option(
        "A file with the held-out examples. Default: a fifth of the data, or its own held-out part.",
        default=None,
        compare=False,
    )
    text_column: str | None = option(
        "Column of the text: a name, or a number (1) in a file without a header. Several, separated by commas, are "
        "read as --pairs says. Default: a column with an obvious name.",
        default=None,
        compare=False,
    )
    label_column: str | None = option(
        "Column of the label. Default: a column with an obvious name.", default=None, compare=False
    )
    pairs: str | None = option(
        "How two text columns are read: joined (as the lines of one text), or segments (first, separator, second, "
        "separator, and an embedding of the segment, as in BERT). Default: segments for mnli, qnli and qqp; joined "
        "otherwise.",
        MODEL,
        default=None,
    )
    tokenizer: str = option(
        "bytes, bpe:N (N tokens learned from the data), a tokenizer.json, or a name on the hub.", compare=False
    )
    train_length: TwoOrMore = option("Tokens per text, the class token included; longer texts are truncated.", MODEL)
    pooling: str = option("cls (a token in front) or mean.", MODEL)


@dataclass(frozen=True, kw_only=True)
class TextRow(Row):
    accuracy: Estimate | None
    macro_f1: Estimate | None
    difference: Difference | None
    """The accuracy minus the reference's; None for the reference itself."""


@dataclass(frozen=True, kw_only=True)
class TextSummary(Summary):
    classes: dict[str, int]
    """The number of held-out examples by class."""
    documents: int
    rows: tuple[TextRow, ...]

    @property
    def examples(self) -> int:
        return sum(self.classes.values())

    @property
    def most_frequent(self) -> float:
        """The accuracy of always answering the most frequent class of the held-out examples."""
        return max(self.classes.values(), default=0) / max(self.examples, 1)

    @property
    def uneven(self) -> bool:
        return max(self.classes.values(), default=0) > UNEVEN * min(self.classes.values(), default=0)


def require_room(train_length: int, others: int) -> None:
    """Raises ArgumentError if a pair of texts, with ``others`` more tokens, has no room for a token of each text."""
    if train_length < others + 2:
        raise ArgumentError(
            f"train_length must be at least {others + 2} for pairs of texts with their separators, got {train_length}"
        )


class Text(TrainedQuestion[TextSpec, Classified, TextSummary]):
    name = page = "text"
    group = "tasks"
    asks = "Does the position encoding matter for classifying texts?"
    Spec = TextSpec
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    presets = presets_of("text")
    presets_help = "default, documents (BERT-base's size, for a GPU) or documents-quarter (a quarter of every size)."

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.labelled import load_labelled
        from posembed.lab.data.tables import paired
        from posembed.lab.tasks.classification import TextClassification

        if chosen.get("pairs") is None and paired(chosen["data"]):
            chosen["pairs"] = "segments"
        if chosen.get("pairs") == "segments":
            require_room(chosen["train_length"], 2 + (chosen["pooling"] == "cls"))
        if chosen.get("pairs") == "joined":
            chosen["pairs"] = None  # the default, so that a command with this option continues a folder without it
        asked = {name: chosen.get(name) for name in ("text_column", "label_column", "test_data", "pairs")}
        task = TextClassification(load_labelled(chosen["data"], **asked), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def summary(self, runs: Sequence[BySeed[Classified]], spec: TextSpec, reading: Compared) -> TextSummary:
        measured = next((m for each in runs for m in each.measured.values()), None)
        rows = (
            TextRow(
                **each.row,
                accuracy=each.mean(lambda m: m.accuracy),
                macro_f1=each.mean(lambda m: m.macro_f1),
                difference=accuracy_difference(each, lambda m: m),
            )
            for each in runs
        )
        return TextSummary(
            classes={} if measured is None else measured.classes,
            documents=0 if measured is None else len(measured.examples),
            rows=tuple(rows),
        )


@dataclass(frozen=True)
class Recognised:
    """Measurements on the held-out images, by the side length in pixels that the images are resized to."""

    right: dict[int, str]
    """"1" for each correctly classified image, "0" for the others, in the order of the images."""
    loss: dict[int, float]
    """Mean cross-entropy in nats."""

    def correct(self, size: int) -> Correct:
        """Returns the correct answers for images of this side. Each image counts as a document."""
        right = tuple(map(int, self.right[size]))
        return Correct(right, (1,) * len(right))


@dataclass(frozen=True, kw_only=True)
class ImageSpec(TrainingSpec):
    """Settings of an image run. ``train_length`` counts the tokens of an image: its patches and any class token."""

    Measured = Recognised

    data: str = option("digits (from scikit-learn, 8 x 8 pixels).", compare=False)
    data_sha256: str
    patch: Count = option("Side of a patch, in pixels.", MODEL)
    train_size: int
    """The side of the training images, in pixels."""
    test_sizes: Ascending[Count] = option(
        "Side lengths in pixels that the held-out images are resized to, separated by commas.", MODEL
    )
    pooling: str = option("cls (a token in front) or mean.", MODEL)

    def grid(self, size: int) -> tuple[int, int]:
        """Returns the grid (height, width), in patches, of an image with this side in pixels."""
        return size // self.patch, size // self.patch


@dataclass(frozen=True, kw_only=True)
class ImageRow(Row):
    """The results of one encoding, by image side in pixels."""

    accuracy: dict[int, Estimate]
    """The accuracy by image side; empty if every run failed."""
    difference: dict[int, Difference]
    """The accuracy minus the reference's, by image side; empty for the reference itself."""


@dataclass(frozen=True, kw_only=True)
class ImageSummary(Summary):
    train_size: int
    patch: int
    test_sizes: tuple[int, ...]
    examples: int
    """The number of held-out images."""
    rows: tuple[ImageRow, ...]

    @property
    def farthest(self) -> int:
        """The test image size whose grid differs most from the training grid."""
        return max(self.test_sizes, key=lambda size: (abs(size - self.train_size), size))


class Images(TrainedQuestion[ImageSpec, Recognised, ImageSummary]):
    name = page = "images"
    group = "tasks"
    asks = "Which position encodings suit images, and which still work on another grid?"
    Spec = ImageSpec
    use = "images"
    usual = ("learned-1d", "learned-2d", "factorized", "sinusoidal", "sinusoidal-2d", "none")
    usual_reference = "learned-1d"
    presets = presets_of("images")  # five seeds take minutes on two cores

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.classification import ImageClassification

        task = ImageClassification(chosen["data"])
        chosen["test_sizes"] = tuple(sorted({*chosen["test_sizes"], task.size}))
        tokens = (task.size // chosen["patch"]) ** 2 + (chosen["pooling"] == "cls")
        return task, {"data_sha256": task.sha256, "train_size": task.size, "train_length": tokens}

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
    difference = {n: accuracy_difference(runs, methodcaller("correct", n)) for n in sizes}
    return ImageRow(
        **runs.row,
        accuracy={size: value for size, value in accuracy.items() if value is not None},
        difference={size: value for size, value in difference.items() if value is not None},
    )
