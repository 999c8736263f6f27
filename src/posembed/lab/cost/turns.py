"""Comparable times: contestants take turns, so that what disturbs the machine disturbs all of them equally."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from posembed.statistics import Estimate, estimate_median

FEWEST_ROUNDS = 7
"""Six rounds are the fewest whose extremes give a 95% interval of the median."""

Step = Callable[[], object]


def ratio(ours: Estimate, theirs: Estimate, *, less: float = 0.0) -> Estimate:
    """Estimates the median ratio of times from the same rounds. ``less=1`` gives the overhead."""
    return estimate_median([a / b - less for a, b in zip(ours.values, theirs.values, strict=True)])


def take_turns(
    steps: Mapping[str, Step],
    *,
    seconds: float,
    fewest: int = FEWEST_ROUNDS,
    device: torch.device | None = None,
    on_round: Callable[[float], None] = lambda done: None,
) -> dict[str, Estimate]:
    """Times each step once per round, until ``seconds`` are spent and ``fewest`` rounds are done.

    Every other round runs in reverse order, so that no step always follows the same one.

    Args:
        on_round: is called after each round with the share that is done, from 0 to 1.

    Returns:
        The median seconds of each step.
    """
    for step in steps.values():
        step()  # the first call sets things up
    times: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    rounds = 0
    while rounds < fewest or time.perf_counter() - started < seconds:
        for name in list(steps) if rounds % 2 == 0 else list(steps)[::-1]:
            _wait(device)
            before = time.perf_counter()
            steps[name]()
            _wait(device)
            times[name].append(time.perf_counter() - before)
        rounds += 1
        on_round(min(rounds / fewest, (time.perf_counter() - started) / max(seconds, 1e-9), 1.0))
    return {name: estimate_median(values) for name, values in times.items()}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Returns b of value = a size^b, by least squares on the logarithms; None for fewer than three points."""
    if len(sizes) < 3 or min(values) <= 0:
        return None
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values]).slope


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
