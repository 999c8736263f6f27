"""Does the position encoding matter for classifying texts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed, Correct, Difference, accuracy_difference
from posembed.lab.question import Compared, Row, Summary, TrainedQuestion
from posembed.lab.runs.spec import MODEL, TrainingSpec, option
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.tasks.text import TextClassification

UNEVEN = 1.5
"""Classes are uneven if the largest has more than this many times the examples of the smallest."""


DEFAULTS = {
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
PRESETS = {"default": DEFAULTS}


@dataclass(frozen=True)
class Classified:
    """Measurements on the held-out examples."""

    right: tuple[int, ...]
    """The number of correctly classified examples, by document."""
    examples: tuple[int, ...]
    """The number of examples, by document."""
    classes: dict[str, int]
    """The number of examples of each class."""
    macro_f1: float
    """The mean over classes of 2 precision recall / (precision + recall)."""
    loss: float
    """Mean cross-entropy in nats."""


@dataclass(frozen=True, kw_only=True)
class TextSpec(TrainingSpec):
    Measured = Classified

    data: str = option("stdlib (classify source by package), a .csv, .tsv or .jsonl file, or hf:NAME.", compare=False)
    data_sha256: str
    """Hash of the examples, their split, and the tokenizer."""
    text_column: str | None = option(
        "Column of the text; several, joined by commas, are concatenated. Default: a column with an obvious name.",
        default=None,
        compare=False,
    )
    label_column: str | None = option(
        "Column of the label. Default: a column with an obvious name.", default=None, compare=False
    )
    tokenizer: str = option(
        "bytes, bpe:N (N merges learned from the data), a tokenizer.json, or a name on the hub.", compare=False
    )
    train_length: int = option("Tokens per text, the class token included; longer texts are truncated.", MODEL)
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
    """Held-out examples by class."""
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


class Text(TrainedQuestion[TextSpec, Classified, TextSummary]):
    name = page = "text"
    group = "tasks"
    asks = "Does the position encoding matter for classifying texts?"
    Spec = TextSpec
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    presets = PRESETS

    def load(self, chosen: dict[str, Any]) -> tuple[TextClassification, dict[str, Any]]:
        from posembed.lab.data.labelled import load_labelled
        from posembed.lab.tasks.text import TextClassification

        if chosen["train_length"] < 2:
            raise ArgumentError(f"train_length must be at least 2, got {chosen['train_length']}")
        columns = {name: chosen.get(name) for name in ("text_column", "label_column")}
        task = TextClassification(load_labelled(chosen["data"], **columns), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def summary(self, runs: Sequence[BySeed[Classified]], spec: TextSpec, reading: Compared) -> TextSummary:
        measured = next((m for each in runs for m in each.measured.values()), None)
        return TextSummary(
            classes={} if measured is None else measured.classes,
            documents=0 if measured is None else len(measured.examples),
            rows=tuple(map(text_row, runs)),
        )


def text_row(runs: BySeed[Classified]) -> TextRow:
    def correct(measured: Classified) -> Correct:
        return Correct(measured.right, measured.examples)

    return TextRow(
        **runs.row,
        accuracy=runs.mean(lambda m: correct(m).accuracy),
        macro_f1=runs.mean(lambda m: m.macro_f1),
        difference=accuracy_difference(runs, runs.reference, correct),
    )
