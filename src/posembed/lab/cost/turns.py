"""Times that can be compared: contestants take turns, so that what disturbs the machine disturbs them alike."""

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


def ratio(ours: Estimate, theirs: Estimate) -> Estimate:
    """Of times taken in the same rounds, round by round."""
    return estimate_median([a / b for a, b in zip(ours.values, theirs.values, strict=True)])


def take_turns(
    steps: Mapping[str, Step],
    *,
    seconds: float,
    fewest: int = FEWEST_ROUNDS,
    device: torch.device | None = None,
    on_round: Callable[[float], None] = lambda done: None,
) -> dict[str, Estimate]:
    """Seconds of each step, in rounds of all, until the time is spent and the fewest rounds are done.

    Every other round goes backwards, so that nobody always follows the same one. ``on_round`` is told the share
    that is done, from 0 to 1.
    """
    for step in steps.values():
        step()  # whatever a first call sets up
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
    """b of value = a size^b, by least squares on the logarithms; None for fewer than three points."""
    if len(sizes) < 3 or min(values) <= 0:
        return None
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values]).slope


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
