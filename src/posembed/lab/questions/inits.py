"""Which initial values should a learned table start from?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from posembed.errors import ArgumentError
from posembed.lab.curves import final_loss, step_at
from posembed.lab.question import Compared, Row, Summary, TrainedQuestion
from posembed.lab.questions.by_seed import BySeed, by_name
from posembed.lab.questions.lengths import PRESETS, LanguageSpec
from posembed.lab.runs.spec import option, require_trainable
from posembed.statistics import Estimate, estimate, paired_difference

if TYPE_CHECKING:
    from posembed.lab.runs.results import RunResult
    from posembed.lab.tasks.initial_values import InitialValues, InitMeasurements

TABLE_VALUES = (
    "scale_before",
    "scale_after",
    "moved",
    "moved_times",
    "cosine",
    "effective_rank_before",
    "effective_rank_after",
    "neighbour_cosine_before",
    "neighbour_cosine_after",
)
"""The measurements of the table that a row reports as means over seeds."""


@dataclass(frozen=True, kw_only=True)
class InitSpec(LanguageSpec):
    COMPARED: ClassVar[str] = "init"

    init: str
    """As in ``initial_table``."""


@dataclass(frozen=True, kw_only=True)
class InitReading(Compared):
    loss: float | None = option(
        "Count the steps to this training loss, in nats. Default: the highest final loss among the runs of a seed.",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class InitRow(Row):
    """One kind of initial values. Intervals are over seeds; None where nothing was measured."""

    loss: Estimate | None
    """On held-out text at the training length, in nats per token."""
    versus_reference: Estimate | None
    """That loss minus the reference's, paired by seed; None for the reference itself."""
    steps: Estimate | None
    """Steps to the summary's loss; None unless every run reached it."""
    steps_reached: int
    """The number of runs that reached it."""
    steps_versus_reference: Estimate | None
    """Ratio of steps, paired by seed."""
    scale_before: Estimate | None
    scale_after: Estimate | None
    moved: Estimate | None
    moved_times: Estimate | None
    cosine: Estimate | None
    effective_rank_before: Estimate | None
    effective_rank_after: Estimate | None
    neighbour_cosine_before: Estimate | None
    neighbour_cosine_after: Estimate | None


@dataclass(frozen=True, kw_only=True)
class InitSummary(Summary):
    train_length: int
    steps: int
    losses: dict[int, float]
    """By seed: the training loss to which ``InitRow.steps`` are counted. Each seed trains on other text."""
    rows: tuple[InitRow, ...]

    @property
    def loss(self) -> float | None:
        """The mean of ``losses``, if there are any."""
        return math.fsum(self.losses.values()) / len(self.losses) if self.losses else None


class Inits(TrainedQuestion["InitSpec", "InitMeasurements", InitSummary]):
    name = page = "inits"
    asks = "Which initial values should a learned table start from?"
    Spec = InitSpec
    ReadingType = InitReading
    usual = ("normal-0.02", "normal-0.01", "normal-0.05", "xavier", "sinusoidal", "sinusoidal-0.02", "zero")
    usual_reference = "normal-0.02"
    names_help = (
        "Initial values to compare, joined by commas: normal-STD, xavier, zero, sinusoidal (amplitude 1), "
        "sinusoidal-STD (scaled to that standard deviation)."
    )
    presets = PRESETS
    preset = "small"
    presets_help = "quick (minutes), small (an hour on two cores) or gpt2 (a GPU)."

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.initial_values import initial_table

        initial_table(name, 1, 2)

    def check_reading(self, reading: Any) -> None:
        if reading.loss is not None and not 0 < reading.loss < math.inf:
            raise ArgumentError(f"expected a training loss above 0, in nats, to count the steps to; got {reading.loss}")

    def prepare(self, chosen: dict[str, Any]) -> tuple[InitialValues, InitSpec]:
        from posembed.lab.data.text import load_corpus
        from posembed.lab.tasks.initial_values import InitialValues

        chosen.pop("test_lengths", None)
        require_trainable(chosen, "train_length", "test_tokens")
        corpus = load_corpus(chosen["data"], tokenizer=chosen["tokenizer"])
        spec = InitSpec(question=self.name, encoding="learned", init="", seed=0, data_sha256=corpus.sha256, **chosen)
        return InitialValues(corpus), spec

    def task_type(self) -> type[InitialValues]:
        from posembed.lab.tasks.initial_values import InitialValues

        return InitialValues

    def summarise(
        self, results: Sequence[RunResult[InitSpec, InitMeasurements]], reading: InitReading | None = None
    ) -> InitSummary:
        reading = reading or InitReading()
        reference, groups = self.reference(results, reading), by_name(results)
        losses: dict[int, float] = {}
        for result in results:
            if result.measurements is not None:
                seed, last = result.spec.seed, final_loss(result.losses)
                losses[seed] = max(losses.get(seed, last), last) if reading.loss is None else reading.loss
        return InitSummary(
            reference=reference,
            train_length=results[0].spec.train_length,
            steps=results[0].spec.steps,
            losses=losses,
            rows=tuple(
                init_row(runs, None if name == reference else groups[reference or ""], losses)
                for name, runs in groups.items()
            ),
        )


def init_row(
    runs: BySeed[InitMeasurements], reference: BySeed[InitMeasurements] | None, losses: dict[int, float]
) -> InitRow:
    steps = steps_to(runs, losses)
    ratio = None
    if reference is not None:
        theirs = steps_to(reference, losses)
        ratio = paired_difference(
            {s: math.log(n) for s, n in steps.items()}, {s: math.log(n) for s, n in theirs.items()}
        )
    return InitRow(
        **runs.row,
        loss=runs.mean(lambda m: m.loss),
        versus_reference=runs.less(reference, lambda m: m.loss),
        steps=estimate(list(steps.values())) if runs.measured and len(steps) == len(runs.measured) else None,
        steps_reached=len(steps),
        steps_versus_reference=ratio and ratio.exp(),
        **dict[str, Any]((name, runs.mean(attrgetter(name))) for name in TABLE_VALUES),
    )


def steps_to(runs: BySeed[InitMeasurements], losses: dict[int, float]) -> dict[int, int]:
    """Returns the step at which each run reached the loss of its seed, without the runs that did not."""
    found = {r.spec.seed: step_at(r.losses, losses[r.spec.seed]) for r in runs.results if r.measurements is not None}
    return {seed: found[seed] for seed in sorted(found) if (found[seed]) is not None}  # type: ignore[misc]
