"""Times that can be compared: contestants take turns, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

CONFIDENCE = 0.95
FEWEST_ROUNDS = 7
"""Six are the fewest whose extremes hold the median with 95 % confidence."""

Step = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """A median and its 95 % interval, which is None for fewer than six values."""

    median: float
    low: float | None
    high: float | None
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """The interval of a median by order statistics (the sign test), which asks nothing of how values are spread.

    With k values cut off each end, it holds the median unless at most k of n fall on one side of it.
    """
    ordered, n = sorted(values), len(values)
    cut, tail = -1, 0.0
    while tail + math.comb(n, cut + 1) / 2**n <= (1 - CONFIDENCE) / 2:
        cut += 1
        tail += math.comb(n, cut) / 2**n
    if cut < 0:
        return Spread(statistics.median(ordered), None, None, tuple(values))
    return Spread(statistics.median(ordered), ordered[cut], ordered[n - 1 - cut], tuple(values))


def ratio(ours: Spread, theirs: Spread) -> Spread:
    """Of times taken in the same rounds, round by round."""
    return spread([a / b for a, b in zip(ours.values, theirs.values, strict=True)])


def take_turns(
    steps: Mapping[str, Step],
    *,
    seconds: float,
    fewest: int = FEWEST_ROUNDS,
    device: torch.device | None = None,
    on_round: Callable[[float], None] = lambda done: None,
) -> dict[str, Spread]:
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
    return {name: spread(values) for name, values in times.items()}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """b of value = a size^b, by least squares on the logarithms; None for fewer than three points."""
    if len(sizes) < 3 or min(values) <= 0:
        return None
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values]).slope


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
