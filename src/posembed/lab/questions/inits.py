"""Which values should a learned table start from? Its runs, and what they say together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.curves import final_loss, step_at
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.initial_values import InitMeasurements, InitSpec, start_of
from posembed.lab.tasks.language import LanguageSpec
from posembed.statistics import Estimate, estimate, paired_difference

USUAL_INITS = (
    "normal-0.02",
    "normal-0.01",
    "normal-0.05",
    "xavier",
    "sinusoidal",
    "sinusoidal-0.02",
    "zero",
)
USUAL_REFERENCE = "normal-0.02"

InitResult: TypeAlias = RunResult[InitSpec, InitMeasurements]


def init_runs(
    settings: LanguageSpec,
    inits: Sequence[str],
    seeds: int,
    *,
    reference: str | None = None,
    loss: float | None = None,
) -> list[InitSpec]:
    """A run for every start and seed of a learned table as long as the training; all of a seed first. The
    encoding, seed and test lengths of ``settings`` do not matter.

    Raises:
        ArgumentError: unknown initial values, none at all, no seed, a reference that is not among them, or a loss
            to count the steps to that no run can have.
    """
    if loss is not None and not 0 < loss < math.inf:
        raise ArgumentError(f"expected a training loss above 0, in nats, to count the steps to; got {loss}")
    for name in inits:
        start_of(name, 1, 2)
    if reference not in (None, *inits):
        raise ArgumentError(
            f"the reference {reference!r} is not among those to run, {', '.join(inits)}; add it to them"
        )
    if not inits or seeds < 1:
        raise ArgumentError(f"expected at least one start and one seed, got {list(inits)} and {seeds}")
    shared = dataclasses.asdict(settings) | {"encoding": "learned", "test_lengths": (settings.train_length,)}
    return [InitSpec(**shared | {"init": name, "seed": seed}) for seed in range(seeds) for name in dict.fromkeys(inits)]


@dataclass(frozen=True)
class InitRow:
    """One start over its seeds, with intervals over them; None where nothing was measured."""

    init: str
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    loss: Estimate | None
    """On held-out text at the training length, in nats a token."""
    versus_reference: Estimate | None
    """That loss less the reference's, paired by seed; None for the reference itself."""
    steps: Estimate | None
    """To the loss of the summary; None where some run did not come down to it."""
    steps_reached: int
    """How many runs came down to it."""
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


@dataclass(frozen=True)
class InitSummary:
    train_length: int
    steps: int
    reference: str | None
    losses: dict[int, float]
    """By seed: to which training loss ``InitRow.steps`` are counted. Each seed trains on other text."""
    rows: tuple[InitRow, ...]

    @property
    def loss(self) -> float | None:
        """The mean of ``losses``, if there are any."""
        return math.fsum(self.losses.values()) / len(self.losses) if self.losses else None


def summarise_inits(
    results: Sequence[InitResult], *, reference: str | None = None, loss: float | None = None
) -> InitSummary:
    """One row a start, in the order of the results.

    Args:
        results: of runs that share all settings but start and seed.
        reference: the start that the others are held against; None takes N(0, .02), if it was run.
        loss: to which training loss to count the steps; None takes, for each seed, the highest at which any of
            its runs ended, which all of them reach.

    Raises:
        ArgumentError: no result at all, or none of the reference.
    """
    if not results:
        raise ArgumentError("no run is finished yet; there is nothing to summarise")
    names = list(dict.fromkeys(result.spec.init for result in results))
    if reference is None and USUAL_REFERENCE in names:
        reference = USUAL_REFERENCE
    if reference not in (None, *names):
        raise ArgumentError(f"the reference {reference!r} was not run; there are {', '.join(names)}")
    losses: dict[int, float] = {}
    for result in results:
        if result.measurements is not None:
            seed, last = result.spec.seed, final_loss(result.losses)
            losses[seed] = max(losses.get(seed, last), last) if loss is None else loss
    by_name = {name: [r for r in results if r.spec.init == name] for name in names}
    theirs = by_name.get(reference or "", [])
    rows = tuple(_row(by_name[name], [] if name == reference else theirs, losses) for name in names)
    spec = results[0].spec
    return InitSummary(spec.train_length, spec.steps, reference, losses, rows)


def _row(results: Sequence[InitResult], reference: Sequence[InitResult], losses: dict[int, float]) -> InitRow:
    ours = {r.spec.seed: r.measurements for r in results if r.measurements is not None}
    theirs = {r.spec.seed: r.measurements for r in reference if r.measurements is not None}
    steps, their_steps = _steps(results, losses), _steps(reference, losses)

    def over_seeds(read: Callable[[InitMeasurements], float | None]) -> Estimate | None:
        values = [value for m in ours.values() if (value := read(m)) is not None]
        return estimate(values) if values else None

    ratio = paired_difference(_logs(steps), _logs(their_steps))
    return InitRow(
        init=results[0].spec.init,
        seeds=tuple(sorted(ours)),
        failures=tuple(f"seed {r.spec.seed}: {r.failure}" for r in results if r.failure is not None),
        loss=over_seeds(lambda m: m.loss),
        versus_reference=paired_difference(
            {seed: m.loss for seed, m in ours.items()}, {seed: m.loss for seed, m in theirs.items()}
        ),
        steps=estimate(list(steps.values())) if ours and len(steps) == len(ours) else None,
        steps_reached=len(steps),
        steps_versus_reference=ratio and ratio.exp(),
        scale_before=over_seeds(lambda m: m.scale_before),
        scale_after=over_seeds(lambda m: m.scale_after),
        moved=over_seeds(lambda m: m.moved),
        moved_times=over_seeds(lambda m: m.moved_times),
        cosine=over_seeds(lambda m: m.cosine),
        effective_rank_before=over_seeds(lambda m: m.effective_rank_before),
        effective_rank_after=over_seeds(lambda m: m.effective_rank_after),
        neighbour_cosine_before=over_seeds(lambda m: m.neighbour_cosine_before),
        neighbour_cosine_after=over_seeds(lambda m: m.neighbour_cosine_after),
    )


def _steps(results: Sequence[InitResult], losses: dict[int, float]) -> dict[int, int]:
    """By seed, of those runs that went well and came down to its loss."""
    well = [r for r in results if r.measurements is not None]
    found = {r.spec.seed: step_at(r.losses, losses[r.spec.seed]) for r in well}
    return {seed: step for seed, step in found.items() if step is not None}


def _logs(steps: dict[int, int]) -> dict[int, float]:
    return {seed: math.log(step) for seed, step in steps.items()}
