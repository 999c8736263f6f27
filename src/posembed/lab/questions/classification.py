"""Labels of texts, words and images, and spans that answer questions: does the position encoding matter there?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import DECLARED, Loaded, TrainedQuestion
from posembed.lab.tasks.classification_specs import ACCURACY, Classified, ImageSpec, TextSpec, require_room
from posembed.lab.tasks.tokens_specs import Answered, SpanSpec, Tagged, TagSpec
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

    def tested(self, measured: Any) -> dict[str, int]:
        """Returns the numbers of held-out words, documents and so on that a model is tested on, by name."""
        raise NotImplementedError

    def batches(self, spec: Any) -> str:
        """Says what a batch holds, for ``trains``."""
        return f"{self.unit} per batch, truncated to {spec.train_length:,} tokens"

    def facts(self, found: Found) -> dict[str, Any]:
        held_out = ""
        if found.measured is not None:
            known = listed([f"{count:,} {what}" for what, count in self.tested(found.measured).items() if count])
            held_out = f" The model is tested on {known}, all held out."
        return {"learns": self.learns, "batches": self.batches(found.spec), "held_out": held_out}


class Text(OfTexts):
    name = "text"
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
    """Returns a sentence with the accuracy of always predicting the most frequent class or label."""
    name, most = max(counts.items(), key=lambda pair: pair[1])
    share = percent(most / sum(counts.values()))
    return f"Always predicting the most frequent {kind}, {name}, would be correct for {share}% of these {of}."


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
        number = 0 if measured is None else len(next(iter(measured.right.values())))
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

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.tagged import load_tagged
        from posembed.lab.tasks.tokens import Tagging

        asked = {name: chosen.get(name) for name in ("text_column", "label_column", "test_data")}
        task = Tagging(load_tagged(chosen["data"], **asked), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def tested(self, measured: Tagged) -> dict[str, int]:
        words, entities = sum(measured.words), sum(measured.entities)
        return {"words": words, "entities": entities, "documents": len(measured.words)}

    def remarks(self, found: Found) -> Iterable[str]:
        if found.measured is not None:
            yield most_frequent("label", found.measured.labels, "words")
            if truncated := found.measured.truncated:
                yield f"{truncated:,} of these words are past the training length and count as wrong."

    def counted(self, found: Found) -> Mapping[str, Mapping[str, int]]:
        return {} if found.measured is None else {"The labels of the held-out words": found.measured.labels}


class Spans(OfTexts):
    name = "spans"
    Spec = SpanSpec

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.data.answered import load_answered
        from posembed.lab.tasks.tokens import Answering

        require_room(chosen["train_length"], 2)
        chosen["stride"] = chosen.get("stride") or None  # one spelling of truncation, so that a folder continues
        task = Answering(load_answered(chosen["data"], test_data=chosen.get("test_data")), chosen["tokenizer"])
        return task, {"data_sha256": task.sha256}

    def tested(self, measured: Answered) -> dict[str, int]:
        return {"questions": sum(measured.questions), "documents": len(measured.questions)}

    def batches(self, spec: SpanSpec) -> str:
        if spec.stride is None:
            return super().batches(spec)
        return (
            f"windows of at most {spec.train_length:,} tokens per batch, which start {spec.stride:,} tokens apart in "
            "contexts that do not fit into one"
        )

    def remarks(self, found: Found) -> Iterable[str]:
        if found.measured is not None and (unseen := found.measured.truncated):
            where = "past the training length; --stride makes it read on"
            if (stride := found.spec.stride) is not None:
                where = f"in none of the windows that start {stride:,} tokens apart; a smaller --stride may help"
            yield f"For {unseen:,} of these questions, the model does not see the answer, which is {where}."
