"""Which initial values should a learned table start from, and do different tasks learn the same table?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.calls import named
from posembed.errors import ArgumentError
from posembed.lab.found import Found, Results
from posembed.lab.metrics import metrics
from posembed.lab.question import Compared, Loaded, Reading, TrainedQuestion
from posembed.lab.runs.results import NORMS_AT_START, RunResult
from posembed.lab.similarities import Similarities, similarities_of
from posembed.lab.tasks.text_specs import CHANGES, LOSS, PERPLEXITY, ByTaskSpec, InitSpec
from posembed.measure.frame import Frame, Value
from posembed.settings import Positive, option
from posembed.words import called, listed, loss_number

LOSSES_AVERAGED = 8
"""The number of losses that ``recent`` averages, because the loss of a single batch is noisy. A run keeps about 100."""
FEWEST_ROWS = 3
"""The fewest rows of tables that can be compared."""
STEPS, *GRADIENTS = metrics("inits", steps=NORMS_AT_START)


@dataclass(frozen=True, kw_only=True)
class InitReading(Compared):
    loss: Positive | None = option(
        "Count the steps to this training loss, in nats. Default: the highest final loss among the runs of a seed.",
        default=None,
    )


class Inits(TrainedQuestion):
    name = "inits"
    metrics = (LOSS, PERPLEXITY, STEPS, *GRADIENTS, *CHANGES)
    Spec = InitSpec
    ReadingType = InitReading
    models: Mapping[str, str]

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        masked = given.get("model") == "masked"
        return super().settings("tiny" if masked and preset is None else preset, given)

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.language import initial_table

        initial_table(name, 1, 2)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        chosen.pop("test_lengths", None)
        if (model := chosen.pop("model", None)) not in (None, "causal"):
            chosen["model"] = model
        return super().load(chosen)

    def frame(self, results: Results, reading: InitReading) -> Frame:
        losses = losses_to_reach(results, reading)

        def values(result: RunResult) -> Iterator[Value]:
            yield Value(STEPS.name, step_at(result.losses, losses[result.spec.seed]))
            norms = [norm for step, norm in result.gradient_norms if step <= NORMS_AT_START]
            known = bool(norms) and result.gradient_norms[0][0] == 1
            highest = max(filter(math.isfinite, norms), default=None) if known else None
            start = norms[0] if known and math.isfinite(norms[0]) else None
            yield from (Value(metric.name, norm) for metric, norm in zip(GRADIENTS, (start, highest), strict=True))

        return Frame.of(results, values)

    def facts(self, found: Found) -> dict[str, Any]:
        return {"model": self.models[found.spec.objective]}

    def remarks(self, found: Found) -> Iterable[str]:
        reading: Any = found.reading
        if losses := losses_to_reach(found.results, reading):
            mean = math.fsum(losses.values()) / len(losses)
            of_each = " (a mean: for each seed, the highest final loss among its runs)" if reading.loss is None else ""
            yield f"Steps are counted to a training loss of {loss_number(mean)}{of_each}."
        reached = {row.name: len(found.by_seed(STEPS, row.name)) for row in found.rows}
        if late := [
            f"{reached[row.name]} of {len(row.seeds)} with {called(row.name)}"
            for row in found.rows
            if reached[row.name] < len(row.seeds)
        ]:
            yield f"Not every run reached it: {listed(late)}."


class ByTask(TrainedQuestion):
    name = "by-task"
    Spec = ByTaskSpec
    ReadingType = Reading

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.objectives import OBJECTIVES

        named("objective", name, OBJECTIVES)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.language import initial_table

        initial_table(chosen["init"], 1, 2)
        if chosen["train_length"] < FEWEST_ROWS:
            raise ArgumentError(
                f"train_length must be at least {FEWEST_ROWS}, because tables of fewer rows cannot be compared; got "
                f"{chosen['train_length']}"
            )
        return super().load(chosen)

    def special(self, found: Found) -> Similarities:
        return similarities_of(found)

    def facts(self, found: Found) -> dict[str, Any]:
        from posembed.lab.tasks.objectives import OBJECTIVES

        return {"tasks": "; ".join(f"{name} {OBJECTIVES[name].line}" for name in found.names)}


def losses_to_reach(results: Results, reading: Any) -> dict[int, float]:
    """Returns, by seed, the training loss that a run must reach, because each seed draws different text."""
    losses: dict[int, float] = {}
    for result in results:
        if result.measurements is not None:
            seed, last = result.spec.seed, recent(result.losses)[-1][1]
            losses[seed] = max(losses.get(seed, last), last) if reading.loss is None else reading.loss
    return losses


def recent(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Replaces each loss in a curve of (step, loss) pairs with the mean of itself and the losses just before it."""
    parts = [curve[max(end - LOSSES_AVERAGED, 0) : end] for end in range(1, len(curve) + 1)]
    return [(part[-1][0], math.fsum(loss for _, loss in part) / len(part)) for part in parts]


def step_at(curve: Sequence[tuple[int, float]], loss: float) -> int | None:
    """Returns the first step at which the ``recent`` mean of a curve is at most ``loss``; None if it never is."""
    return next((step for step, mean in recent(curve) if mean <= loss), None)
