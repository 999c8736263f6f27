"""Labels of texts, words and images, and spans that answer questions: does the position encoding matter there?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from posembed.errors import ArgumentError
from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import DECLARED, Loaded, TrainedQuestion
from posembed.lab.tasks.classification_specs import ACCURACY, ImageSpec, SpanSpec, TagSpec, TextSpec, require_room
from posembed.measure.metrics import Metric
from posembed.words import listed, percent

TWINS = {"learned-1d", "learned-2d"}
"""Encodings with one row per patch and the same initial values: they are the same model until the grid changes."""


class OfTexts(TrainedQuestion):
    """A question about small encoders of labelled texts."""

    group = "tasks"
    trains = DECLARED["labelled texts"]["trains"]
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    learns: str
    """What a model learns, as an infinitive phrase."""
    unit: str
    """What a batch holds, in the plural."""
    read: str
    """The function that reads the data, as MODULE:FUNCTION below lab.data."""
    asked: tuple[str, ...] = ("test_data",)
    """The settings that this function takes."""
    classes: tuple[str, str, str] = ("label", "labels", "words")
    """What a class is called, several classes, and what has one."""

    def load(self, chosen: dict[str, Any]) -> Loaded:
        read, kind = resolve_name(f"posembed.lab.data.{self.read}"), resolve_name(f"posembed.lab.tasks.{self.task}")
        task = kind(read(chosen["data"], **{name: chosen.get(name) for name in self.asked}), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def batches(self, spec: Any) -> str:
        """Says what a batch holds, for ``trains``."""
        return f"{self.unit} per batch, truncated to {spec.train_length:,} tokens"

    def facts(self, found: Found) -> dict[str, Any]:
        held_out = ""
        if found.measured is not None:
            known = listed([f"{count:,} {what}" for what, count in found.measured.sizes.items() if count])
            held_out = f" The model is tested on {known}, all held out."
        return {"learns": self.learns, "batches": self.batches(found.spec), "held_out": held_out}

    def remarks(self, found: Found) -> Iterator[str]:
        if found.measured is None:
            return
        if classes := found.measured.classes:
            (name, most), total = max(classes.items(), key=lambda pair: pair[1]), sum(classes.values())
            yield (
                f"Always predicting the most frequent {self.classes[0]}, {name}, would be correct for "
                f"{percent(most / total)}% of these {self.classes[2]}."
            )
        if unseen := found.measured.unseen:
            yield self.about_unseen(unseen, found.spec)

    def about_unseen(self, unseen: int, spec: Any) -> str:
        return f"{unseen:,} of these {self.classes[2]} are past the training length and count as wrong."

    def counted(self, found: Found) -> Mapping[str, Mapping[str, int]]:
        _, classes, examples = self.classes
        known = {} if found.measured is None else found.measured.classes
        return {f"The {classes} of the held-out {examples}": known} if known else {}


class Text(OfTexts):
    name = "text"
    Spec = TextSpec

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.tables import paired

        if chosen.get("pairs") is None and paired(chosen["data"]):
            chosen["pairs"] = "segments"
        if chosen.get("pairs") == "segments":
            require_room(chosen["train_length"], 2 + (chosen["pooling"] == "cls"))
        if chosen.get("pairs") == "joined":
            chosen["pairs"] = None  # the default, so that a command with this option continues a folder without it
        return super().load(chosen)


class Images(TrainedQuestion):
    name = "images"
    Spec = ImageSpec
    use = "images"

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.classification import ImageClassification

        task = ImageClassification(chosen["data"])
        chosen["test_sizes"] = tuple(sorted({*chosen["test_sizes"], task.size}))
        tokens = (task.size // chosen["patch"]) ** 2 + (chosen["pooling"] == "cls")
        return task, {"data_sha256": task.sha256, "train_size": task.size, "train_length": tokens}

    def axis(self, results: Results, metric: Metric) -> Axis:
        spec = results[0].spec
        farthest = max(spec.test_sizes, key=lambda size: (abs(size - spec.train_size), size))
        notes = {size: " x ".join(map(str, spec.grid(size))) for size in spec.test_sizes}
        return Axis("pixels a side", farthest, trained=spec.train_size, notes=notes)

    def facts(self, found: Found) -> dict[str, Any]:
        spec, measured = found.spec, found.measured
        resized = ""
        if spec.train_sizes:
            resized = (
                f" For each step, they are resized to one of {', '.join(map(str, spec.train_sizes))} pixels a side."
            )
        number = 0 if measured is None else measured.sizes["images"]
        return {"grid": " x ".join(map(str, spec.grid(spec.train_size))), "resized": resized, "number": number}

    def remarks(self, found: Found) -> Iterable[str]:
        size = found.spec.train_size
        for name in {*found.names} & TWINS if found.reference in TWINS else ():
            versus = found.versus(ACCURACY, name, size)
            if versus is not None and set(versus.kinds[0].values) == {0.0}:
                yield (
                    f"{name} and {found.reference} are the same model until the grid changes, so with equal "
                    "seeds, their accuracies on the training grid are equal."
                )


class Tags(OfTexts):
    name = "tags"
    Spec = TagSpec


class Spans(OfTexts):
    name = "spans"
    Spec = SpanSpec

    def load(self, chosen: dict[str, Any]) -> Loaded:
        require_room(chosen["train_length"], 2)
        chosen["stride"] = chosen.get("stride") or None  # one spelling of truncation, so that a folder continues
        most = chosen["train_length"] - 3  # with two separators, and a token of the question
        if (chosen["stride"] or 0) > most:
            raise ArgumentError(
                f"stride: expected at most {most:,}, the most tokens of a context in a window of "
                f"{chosen['train_length']:,}; got {chosen['stride']:,}"
            )
        return super().load(chosen)

    def batches(self, spec: SpanSpec) -> str:
        if spec.stride is None:
            return super().batches(spec)
        return (
            f"windows of at most {spec.train_length:,} tokens per batch, which start {spec.stride:,} tokens apart in "
            "contexts that do not fit into one"
        )

    def about_unseen(self, unseen: int, spec: SpanSpec) -> str:
        where = "past the training length; --stride makes it read on"
        if spec.stride is not None:
            where = f"in none of the windows that start {spec.stride:,} tokens apart; a smaller --stride may help"
        return f"For {unseen:,} of these questions, the model does not see the answer, which is {where}."
