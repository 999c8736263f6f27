"""Results of labelled words and answered questions as runs would give them, made up."""

from __future__ import annotations

from made_up_classes import LOSSES, drawn
from made_up_runs import made_up
from posembed.lab.questions.classification import Spans, Tags
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.tokens_specs import Answered, SpanSpec, Tagged, TagSpec

DOCUMENTS, EACH = 60, 8
SHARES = {"learned": 0.93, "sinusoidal": 0.85, "rope": 0.95, "none": 0.4}


def by_document(values: list[bool]) -> tuple[int, ...]:
    return tuple(sum(values[i : i + EACH]) for i in range(0, len(values), EACH))


def tag_run(encoding: str, seed: int = 0, *, entities: bool = True, truncated: int = 0) -> RunResult:
    spec = TagSpec(question="tags", encoding=encoding, seed=seed, data_sha256="0" * 64, **Tags.presets["default"])
    found = by_document(drawn(SHARES.get(encoding, 0.7), DOCUMENTS * EACH, seed))
    nothing = (0,) * DOCUMENTS
    measured = Tagged(
        right=tuple(count + EACH for count in found),
        words=(2 * EACH,) * DOCUMENTS,
        found=found if entities else nothing,
        predicted=tuple((count + EACH + 1) // 2 for count in found) if entities else nothing,
        entities=(EACH,) * DOCUMENTS if entities else nothing,
        labels={"B-PER": 300, "I-PER": 180, "O": 480},
        truncated=truncated,
        loss=0.2,
    )
    return made_up(spec, LOSSES, measured, position_parameters=2048 if encoding == "learned" else 0)


def span_run(encoding: str, seed: int = 0, *, truncated: int = 0) -> RunResult:
    spec = SpanSpec(question="spans", encoding=encoding, seed=seed, data_sha256="0" * 64, **Spans.presets["default"])
    exact = by_document(drawn(SHARES.get(encoding, 0.7) - 0.1, DOCUMENTS * EACH, seed))
    measured = Answered(
        exact=exact,
        f1=tuple((count + EACH) / 2 for count in exact),
        questions=(EACH,) * DOCUMENTS,
        truncated=truncated,
        loss=0.6,
    )
    return made_up(spec, LOSSES, measured, position_parameters=3072 if encoding == "learned" else 0)


def tag_runs(seeds: int = 3, names: tuple[str, ...] = tuple(SHARES)) -> list[RunResult]:
    return [tag_run(name, seed) for seed in range(seeds) for name in names]


def span_runs(seeds: int = 3, names: tuple[str, ...] = tuple(SHARES)) -> list[RunResult]:
    return [span_run(name, seed) for seed in range(seeds) for name in names]
