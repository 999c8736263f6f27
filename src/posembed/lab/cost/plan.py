"""Estimates how long a cost measurement takes, from a few steps."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

from posembed.lab.cost.instruments import FEWEST_ROUNDS, Step, seconds_of, time_batch
from posembed.lab.cost.measure import SECONDS, SHARES, checked, encoding_of, parameter_count, steps_of
from posembed.lab.cost.results import CostSettings
from posembed.lab.cost.summary import PLAIN
from posembed.measure.jobs import Planned

GROWTH_TAKES = SECONDS / 2
"""About the seconds that the growth measurement takes for all encodings together."""


def plan_cost(settings: CostSettings) -> list[Planned]:
    """Estimates how long ``measure_cost`` takes: for attention without position, then for each encoding. Raises
    ArgumentError for invalid settings."""
    settings = checked(settings)
    passes = [_seconds_of_steps(settings, training=training) for training in SHARES]
    seconds = {step: math.fsum(each[step] for each in passes) for step in passes[0]}
    planned = [Planned(PLAIN, 0, seconds[PLAIN])]
    for name in settings.encodings:
        taken = seconds[f"alone {name}"] + seconds[f"with {name}"] + GROWTH_TAKES / len(settings.encodings)
        planned.append(Planned(name, parameter_count(encoding_of(settings, name)), taken))
    return planned


def _seconds_of_steps(settings: CostSettings, *, training: bool) -> dict[str, float]:
    """Estimates the seconds that all rounds of one pass take, by step."""

    @cache
    def steps(rows: int) -> dict[str, Step]:
        return steps_of(dataclasses.replace(settings, batch=rows), training=training)

    def timed(name: str) -> float:
        return time_batch(lambda _, rows: seconds_of(steps(rows)[name]), settings.batch)

    each = {name: timed(name) for name in steps(1)}
    rounds = max(FEWEST_ROUNDS + 1, settings.seconds * SHARES[training] / math.fsum(each.values()))
    return {name: rounds * seconds for name, seconds in each.items()}
