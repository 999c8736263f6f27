"""Results of labelled words and answered questions as runs would give them, made up."""

from __future__ import annotations

from made_up_classes import LOSSES, drawn
from made_up_runs import made_up
from posembed.lab.metrics import Measured, by_item
from posembed.lab.questions.classification import Spans, Tags
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.classification_specs import ENTITY_F1, EXACT, F1, LOSS, TOKEN_ACCURACY, SpanSpec, TagSpec
from posembed.measure.frame import Value

DOCUMENTS, EACH = 60, 8
SHARES = {"learned": 0.93, "sinusoidal": 0.85, "rope": 0.95, "none": 0.4}


def by_document(values: list[bool]) -> tuple[int, ...]:
    return tuple(sum(values[i : i + EACH]) for i in range(0, len(values), EACH))


def tag_run(encoding: str, seed: int = 0, *, entities: bool = True, truncated: int = 0) -> RunResult:
    spec = TagSpec(question="tags", encoding=encoding, seed=seed, data_sha256="0" * 64, **Tags.presets["default"])
    found = by_document(drawn(SHARES.get(encoding, 0.7), DOCUMENTS * EACH, seed))
    marked = [(count + EACH + 1) // 2 + EACH for count in found]
    measured = Measured(
        (
            *(by_item(ENTITY_F1, [2 * count for count in found], marked) if entities else ()),
            *by_item(TOKEN_ACCURACY, [count + EACH for count in found], [2 * EACH] * DOCUMENTS),
            Value(LOSS.name, 0.2),
        ),
        {"words": 2 * EACH * DOCUMENTS, "entities": EACH * DOCUMENTS * entities, "documents": DOCUMENTS},
        {"B-PER": 300, "I-PER": 180, "O": 480},
        truncated,
    )
    return made_up(spec, LOSSES, measured, position_parameters=2048 if encoding == "learned" else 0)


def span_run(encoding: str, seed: int = 0, *, truncated: int = 0) -> RunResult:
    spec = SpanSpec(question="spans", encoding=encoding, seed=seed, data_sha256="0" * 64, **Spans.presets["default"])
    exact = by_document(drawn(SHARES.get(encoding, 0.7) - 0.1, DOCUMENTS * EACH, seed))
    questions = (EACH,) * DOCUMENTS
    values = (
        *by_item(F1, [(count + EACH) / 2 for count in exact], questions),
        *by_item(EXACT, exact, questions),
        Value(LOSS.name, 0.6),
    )
    measured = Measured(values, {"questions": sum(questions), "documents": DOCUMENTS}, unseen=truncated)
    return made_up(spec, LOSSES, measured, position_parameters=3072 if encoding == "learned" else 0)


def tag_runs(seeds: int = 3, names: tuple[str, ...] = tuple(SHARES)) -> list[RunResult]:
    return [tag_run(name, seed) for seed in range(seeds) for name in names]


def span_runs(seeds: int = 3, names: tuple[str, ...] = tuple(SHARES)) -> list[RunResult]:
    return [span_run(name, seed) for seed in range(seeds) for name in names]
