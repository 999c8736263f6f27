"""Measures the time and the peak memory of steps. Timed steps take turns, so that a disturbance affects all alike."""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posembed.statistics import Estimate, estimate_median

FEWEST_ROUNDS = 7  # six rounds are the fewest whose extremes give a 95% interval of the median
STEPS_TO_TIME, LONG_ENOUGH, LONGEST_TO_TIME = 3, 0.03, 2.0
"""``time_batch`` times this many steps, with enough rows that each takes about ``LONG_ENOUGH`` seconds, and stops early
after ``LONGEST_TO_TIME`` seconds."""

Step = Callable[[], object]


def ratio(ours: Estimate, theirs: Estimate, *, less: float = 0.0) -> Estimate:
    """Estimates the median over rounds of the ratio of two times, minus ``less``. ``less=1`` gives the overhead."""
    return estimate_median([a / b - less for a, b in zip(ours.values, theirs.values, strict=True)])


def take_turns(
    steps: Mapping[str, Step],
    *,
    seconds: float,
    fewest: int = FEWEST_ROUNDS,
    on_round: Callable[[float], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Estimate]:
    """Times each step once per round, until ``seconds`` have passed and ``fewest`` rounds are done.

    Every other round runs in reverse order, so that no step always follows the same step. ``on_round`` is called
    after each round with the share of the work done, from 0 to 1. Returns the median time of each step in seconds of
    ``clock``; ``time.process_time`` leaves out the time that other programs take.
    """
    for step in steps.values():
        step()  # the first call also does one-time setup, so it is not timed
    times: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    rounds = 0
    while rounds < fewest or time.perf_counter() - started < seconds:
        for name in list(steps) if rounds % 2 == 0 else list(steps)[::-1]:
            times[name].append(seconds_of(steps[name], clock))
        rounds += 1
        on_round(min(rounds / fewest, (time.perf_counter() - started) / max(seconds, 1e-9), 1.0))
    return {name: estimate_median(values) for name, values in times.items()}


def seconds_of(step: Step, clock: Callable[[], float] = time.perf_counter) -> float:
    """Runs a step once and returns how many seconds it took, including its work on a GPU."""
    _wait()
    before = clock()
    step()
    _wait()
    return clock() - before


def time_batch(timed: Callable[[int, int], float], batch: int) -> float:
    """Estimates the seconds of one step on ``batch`` rows, from a few steps. ``timed`` runs a step, given its number
    and its rows, and returns its seconds.

    Starts with one row, and adds rows until a step takes long enough. Extrapolates in proportion, because the whole
    batch may take minutes, or not fit into memory.
    """
    rows = 1
    timed(0, rows)  # the first call also does one-time setup
    while (seconds := timed(0, rows)) < LONG_ENOUGH and rows < batch:
        rows = min(4 * rows, batch)
    times = [seconds]
    while sum(times) < LONGEST_TO_TIME and len(times) < STEPS_TO_TIME:
        times.append(timed(len(times), rows))
    return statistics.median(times) * batch / rows


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Fits value = a size^b by least squares on the logarithms. Returns b, or None if there are fewer than three
    points or a value is not positive."""
    if len(sizes) < 3 or min(values) <= 0:
        return None
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in values]).slope


def peak_bytes(step: Step) -> int:
    """Returns the peak number of bytes in the tensors that a step creates, on all devices together.

    Storages are counted, so a view adds nothing. Memory that a kernel uses outside of tensors is not counted.
    """
    counter = _Storages()
    with counter:
        kept = step()  # the result counts too
    del kept
    return counter.peak


class _Storages(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.update(_storages(args, kwargs))  # these existed before the step, or are counted already
        created = func(*args, **(kwargs or {}))
        for storage in _storages(created):
            if storage not in self.seen:
                self.seen.add(storage)
                weakref.finalize(storage, self._remove, storage.nbytes())
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
        return created

    def _remove(self, size: int) -> None:
        self.now -= size


def _storages(*values: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tree_leaves(values) if isinstance(tensor, Tensor)]
