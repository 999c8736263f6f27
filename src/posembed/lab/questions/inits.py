"""Which initial values should a learned table start from?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Generic, Literal, TypeVar

from posembed.lab.by_seed import BySeed
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.runs.results import NORMS_AT_START
from posembed.lab.runs.spec import MODEL
from posembed.lab.tasks.text_specs import LanguageSpec, corpus_of, with_length_counts
from posembed.settings import Positive, option
from posembed.statistics import Estimate, estimate, paired_difference

ValueT = TypeVar("ValueT")
CAUSAL, MASKED = "causal", "masked"
LOSSES_AVERAGED = 8
"""The number of losses that ``recent`` averages, because the loss of a single batch is noisy. A run keeps about 100."""


@dataclass(frozen=True, kw_only=True)
class TableValues(Generic[ValueT]):
    """Measurements of a table before and after training, either of one run or as means over seeds."""

    scale_before: ValueT
    """The root mean square of the rows."""
    scale_after: ValueT
    moved: ValueT
    """The root mean square of the change in the rows."""
    cosine: ValueT | None
    """The cosine between the whole table before and after training."""
    effective_rank_before: ValueT
    effective_rank_after: ValueT
    neighbour_cosine_before: ValueT | None
    """The mean cosine of neighbouring rows."""
    neighbour_cosine_after: ValueT | None


@dataclass(frozen=True, kw_only=True)
class InitMeasurements(TableValues[float]):
    """The loss of a run, and its table before and after training. None means undefined, because a table is zero."""

    loss: float
    """The loss on held-out text in windows of the training length, in nats per token."""
    bytes_per_token: float | None

    @property
    def moved_times(self) -> float | None:
        """How far the rows moved, relative to their initial scale."""
        return self.moved / self.scale_before if self.scale_before else None


@dataclass(frozen=True, kw_only=True)
class TableSpec(LanguageSpec):
    """Settings of a run that trains a learned table at the input of a language model."""

    Measured = InitMeasurements

    encoding: str = "learned"
    init: str = ""
    """The name of the initial values, as in ``initial_table``."""


@dataclass(frozen=True, kw_only=True)
class InitSpec(TableSpec):
    COMPARED: ClassVar[str] = "init"

    model: Literal["causal", "masked"] | None = option(
        "causal, which predicts the next token, or masked, which sees both sides of hidden tokens as BERT does. "
        "Default: causal.",
        MODEL,
        default=None,
    )

    @property
    def objective(self) -> str:
        return self.model or CAUSAL


@dataclass(frozen=True, kw_only=True)
class InitReading(Compared):
    loss: Positive | None = option(
        "Count the steps to this training loss, in nats. Default: the highest final loss among the runs of a seed.",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class InitRow(TableValues[Estimate | None], Row):
    """The results of one kind of initial values. Intervals are over seeds. None means that nothing was measured."""

    loss: Estimate | None
    """The loss on held-out text at the training length, in nats per token."""
    versus_reference: Estimate | None
    """The loss minus the reference's, paired by seed; None for the reference itself."""
    steps: Estimate | None
    """The number of steps until the loss in ``InitSummary.losses``; None unless every run reached it."""
    steps_reached: int
    """The number of runs that reached that loss."""
    gradient_at_start: Estimate | None
    """The norm of the whole gradient at the first step, before clipping. None if it is not known for every run, as in
    results of earlier versions, or after an overflow in fp16."""
    highest_gradient: Estimate | None
    """The highest norm among the first ten steps, without those that overflowed."""
    steps_versus_reference: Estimate | None
    """The ratio of ``steps`` to the reference's steps, paired by seed."""
    moved_times: Estimate | None


@dataclass(frozen=True, kw_only=True)
class InitSummary(Summary):
    model: str
    """"causal" or "masked"."""
    train_length: int
    steps: int
    losses: dict[int, float]
    """The training loss at which ``InitRow.steps`` stops counting, by seed, because each seed draws different text."""
    rows: tuple[InitRow, ...]

    @property
    def loss(self) -> float | None:
        """The mean of ``losses``; None if it is empty."""
        return math.fsum(self.losses.values()) / len(self.losses) if self.losses else None


class Inits(TrainedQuestion[InitSpec, InitMeasurements, InitSummary]):
    name = page = "inits"
    asks = "Which initial values should a learned table start from?"
    Spec = InitSpec
    ReadingType = InitReading
    usual = ("normal-0.02", "normal-0.01", "normal-0.05", "xavier", "sinusoidal", "sinusoidal-0.02", "zero")
    usual_reference = "normal-0.02"
    names_help = (
        "Initial values to compare, separated by commas: normal-STD, xavier, zero, sinusoidal (amplitude 1), "
        "sinusoidal-STD (scaled to that standard deviation)."
    )
    presets = presets_of("lengths", "inits")
    preset = "quick"
    presets_help = (
        "tiny (two minutes; the default with --model masked), quick (minutes), small (an hour on two cores), gpt2 or "
        "bert (a GPU)."
    )

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        masked = given.get("model") == MASKED
        return super().settings("tiny" if masked and preset is None else preset, given)

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.language import initial_table

        initial_table(name, 1, 2)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.language import InitialValues

        chosen.pop("test_lengths", None)
        if (model := chosen.pop("model", None)) not in (None, CAUSAL):
            chosen["model"] = model
        with_length_counts(chosen)
        corpus = corpus_of(chosen)
        return InitialValues(corpus), {"data_sha256": corpus.sha256}

    def summary(self, runs: Sequence[BySeed[InitMeasurements]], spec: InitSpec, reading: InitReading) -> InitSummary:
        losses: dict[int, float] = {}
        for result in (result for each in runs for result in each.results):
            if result.measurements is not None:
                seed, last = result.spec.seed, recent(result.losses)[-1][1]
                losses[seed] = max(losses.get(seed, last), last) if reading.loss is None else reading.loss
        return InitSummary(
            model=spec.objective,
            train_length=spec.train_length,
            steps=spec.steps,
            losses=losses,
            rows=tuple(init_row(each, losses) for each in runs),
        )


def init_row(runs: BySeed[InitMeasurements], losses: dict[int, float]) -> InitRow:
    def logarithms(of: BySeed[InitMeasurements]) -> dict[int, float]:
        return {seed: math.log(step) for seed, step in steps_to(of, losses).items()}

    steps, reference = steps_to(runs, losses), runs.reference
    ratio = None if reference is None else paired_difference(logarithms(runs), logarithms(reference))
    return InitRow(
        **runs.row,
        loss=runs.mean(lambda m: m.loss),
        versus_reference=runs.less(runs.reference, lambda m: m.loss),
        steps=estimate(list(steps.values())) if runs.measured and len(steps) == len(runs.measured) else None,
        steps_reached=len(steps),
        gradient_at_start=mean_norm(runs, lambda norms: norms[0]),
        highest_gradient=mean_norm(runs, lambda norms: max(filter(math.isfinite, norms), default=math.inf)),
        steps_versus_reference=ratio and ratio.exp(),
        moved_times=runs.mean(lambda m: m.moved_times),
        **dict[str, Any]((field.name, runs.mean(attrgetter(field.name))) for field in dataclasses.fields(TableValues)),
    )


def mean_norm(runs: BySeed[InitMeasurements], read: Callable[[Sequence[float]], float]) -> Estimate | None:
    """Estimates what ``read`` returns for the gradient norms of the first ten steps; None unless every run kept them,
    and the value is finite."""
    first = [
        [norm for step, norm in result.gradient_norms if step <= NORMS_AT_START]
        for result in runs.results
        if result.measurements is not None and result.gradient_norms[:1] and result.gradient_norms[0][0] == 1
    ]
    found = [read(norms) for norms in first]
    known = len(found) == len(runs.measured) and all(map(math.isfinite, found))
    return estimate(found) if found and known else None


def steps_to(runs: BySeed[InitMeasurements], losses: dict[int, float]) -> dict[int, int]:
    """Returns, by seed, the step at which a run reached the loss of its seed. Leaves out runs that never did."""
    found = {r.spec.seed: step_at(r.losses, losses[r.spec.seed]) for r in runs.results if r.measurements is not None}
    return {seed: step for seed, step in sorted(found.items()) if step is not None}


def recent(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Replaces each loss in a curve of (step, loss) pairs with the mean of itself and the losses just before it."""
    parts = [curve[max(end - LOSSES_AVERAGED, 0) : end] for end in range(1, len(curve) + 1)]
    return [(part[-1][0], math.fsum(loss for _, loss in part) / len(part)) for part in parts]


def step_at(curve: Sequence[tuple[int, float]], loss: float) -> int | None:
    """Returns the first step at which the ``recent`` mean of a curve is at most ``loss``; None if it never is."""
    return next((step for step, mean in recent(curve) if mean <= loss), None)
