"""Labels of words, and spans that answer questions: does the encoding matter where a model must say *where*?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from posembed.lab.found import Found
from posembed.lab.question import Loaded
from posembed.lab.questions.classification import OfTexts, most_frequent
from posembed.lab.tasks.classification_specs import LOSS, require_room
from posembed.lab.tasks.tokens_specs import (
    ENTITY_F1,
    EXACT,
    F1,
    TOKEN_ACCURACY,
    Answered,
    SpanSpec,
    Tagged,
    TagSpec,
)


class Tags(OfTexts):
    name = "tags"
    metrics = (ENTITY_F1, TOKEN_ACCURACY, LOSS)
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
    metrics = (F1, EXACT, LOSS)
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
