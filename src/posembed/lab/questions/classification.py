"""Classification: does the position encoding matter for texts, and which encodings suit images on other grids?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from posembed.lab.found import Axis, Found, Results, model_size
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.tasks.classification_specs import (
    ACCURACY,
    LOSS,
    MACRO_F1,
    Classified,
    ImageSpec,
    TextSpec,
    require_room,
)
from posembed.measure.metrics import Metric
from posembed.words import listed, percent

TWINS = {"learned-1d", "learned-2d"}
"""Encodings with one row per patch and the same initial values: they are the same model until the grid changes."""


class OfTexts(TrainedQuestion):
    """A question about small encoders of labelled texts."""

    group = "tasks"
    use = "encoder"
    usual = ("learned", "sinusoidal", "rope", "alibi", "t5", "none")
    usual_reference = "sinusoidal"
    learns: str
    """What a model learns, as an infinitive phrase."""
    unit: str
    """What a batch holds, in the plural."""

    def tested(self, measured: Any) -> dict[str, int]:
        """Returns on how many things of each kind a model is tested."""
        raise NotImplementedError

    def batches(self, spec: Any) -> str:
        """Says what a batch holds, for an ``about``."""
        return f"{self.unit} per batch, truncated to {spec.train_length:,} tokens"

    def about(self, found: Found) -> str:
        spec, held_out = found.spec, ""
        if found.measured is not None:
            known = listed([f"{count:,} {what}" for what, count in self.tested(found.measured).items() if count])
            held_out = f" The model is tested on {known}, all held out."
        return (
            f"Each run trains a small Transformer encoder ({model_size(spec)}) to {self.learns} ({spec.data}): "
            f"{spec.steps:,} steps, {spec.batch} {self.batches(spec)}.{held_out} Only the position encoding differs."
        )


class Text(OfTexts):
    name = "text"
    metrics = (ACCURACY, MACRO_F1, LOSS)
    Spec = TextSpec

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

    def tested(self, measured: Classified) -> dict[str, int]:
        examples = f"examples of {len(measured.classes)} classes"
        return {examples: sum(measured.examples), "documents": len(measured.examples)}

    def remarks(self, found: Found) -> Iterable[str]:
        if found.measured is not None:
            yield most_frequent("class", found.measured.classes, "examples")

    def counted(self, found: Found) -> Mapping[str, Mapping[str, int]]:
        return {} if found.measured is None else {"The classes of the held-out examples": found.measured.classes}


def most_frequent(kind: str, counts: Mapping[str, int], of: str) -> str:
    """Returns a sentence on always answering the most frequent class or label."""
    name, most = max(counts.items(), key=lambda pair: pair[1])
    share = percent(most / sum(counts.values()))
    return f"Always predicting the most frequent {kind}, {name}, would be correct for {share}% of these {of}."


class Images(TrainedQuestion):
    name = "images"
    metrics = (ACCURACY, LOSS)
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

    def about(self, found: Found) -> str:
        spec, measured = found.spec, found.measured
        resized = ""
        if spec.train_sizes:
            resized = (
                f" For each step, they are resized to one of {', '.join(map(str, spec.train_sizes))} pixels a side."
            )
        number = 0 if measured is None else len(next(iter(measured.right.values())))
        return (
            f"Each run trains a small ViT ({model_size(spec)}) on {spec.data} for {spec.steps:,} steps, with "
            f"{spec.batch} images per batch. Each image has {spec.train_size} x {spec.train_size} pixels and is "
            f"divided into a grid of {' x '.join(map(str, spec.grid(spec.train_size)))} patches.{resized} Only the "
            f"position encoding differs. Each model is tested on {number:,} held-out images, at that size and resized "
            "bilinearly to other sizes, with its table resized to the new grid and no further training. Patches keep "
            "their size in pixels, so their number changes."
        )

    def remarks(self, found: Found) -> Iterable[str]:
        size = found.spec.train_size
        for name in {*found.names} & TWINS if found.reference in TWINS else ():
            versus = found.versus(ACCURACY, name, size)
            if versus is not None and set(versus.kinds[0].values) == {0.0}:
                yield (
                    f"{name} and {found.reference} are the same model until the grid changes, so with equal "
                    "seeds, their accuracies on the training grid are equal."
                )
