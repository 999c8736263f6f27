"""Measures the cost of encodings on this machine. All encodings take turns."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple

import torch

from posembed.errors import ArgumentError
from posembed.lab.cost.instruments import (
    FEWEST_ROUNDS,
    Step,
    fit_exponent,
    peak_bytes,
    ratio,
    seconds_of,
    take_turns,
    time_batch,
)
from posembed.lab.cost.places import AttentionWith, Places, writes
from posembed.lab.cost.results import GROWTH_SHAPE, PLAIN, CostResult, CostSettings, Shape
from posembed.lab.runs.environment import describe_environment
from posembed.lab.runs.spec import default_window, require_divisible
from posembed.layers.base import PositionEncoding
from posembed.layers.none import NoPosition
from posembed.measure.frame import Frame, Run, Value
from posembed.measure.jobs import Planned, Progress, silent
from posembed.nn import Attention, Sizes, encoding_by_name
from posembed.nn.encodings import split_name
from posembed.statistics import Estimate

SHARES = {False: 1 / 3, True: 2 / 3}
"""The share of the time to spend on the forward pass alone (False), and on forward and backward together (True)."""

MOST_BYTES = 2 * 2**30  # a length is not tried if its step would need more than this at its peak
SECONDS = 30.0  # shared equally; a length is not tried if it would take its encoding past its share
ROUNDS = 3
CALLS = ROUNDS + 2  # plus one call to warm up and one to count the memory
MOST_GROWTH = 4
"""The largest factor to predict for the time when the length doubles. Quadratic growth is 4; any more is noise."""
FIT_FROM = 2048  # below this length, the overhead of function calls dominates
FEWEST_TO_FIT = 3


def checked(settings: CostSettings) -> CostSettings:
    """Returns the settings. Raises ArgumentError for an unknown encoding or device, or a width that the heads do not
    divide."""
    require_divisible(settings.width, settings.heads)
    if settings.device != "cpu" and not (settings.device == "cuda" and torch.cuda.is_available()):
        raise ArgumentError(f"this machine has no device {settings.device!r} to measure on; use cpu or cuda")
    for name in settings.encodings:
        split_name(name)
        with torch.device("meta"):
            encoding_of(settings, name)
    return settings


def encoding_of(settings: CostSettings, name: str, shape: Shape | None = None) -> PositionEncoding:
    """Builds an encoding as the lab does, at the sizes of the settings or of ``shape``."""
    shape = shape or settings.shape
    window = settings.window or default_window(settings.layers, settings.length)
    ring = max(window, default_window(settings.layers, shape.length))
    return encoding_by_name(
        name, Sizes(dim=shape.width, heads=shape.heads, max_len=shape.length, window=window, ring=ring)
    )


def parameter_count(encoding: PositionEncoding) -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())


def measure_cost(settings: CostSettings, progress: Progress = silent) -> CostResult:
    """Measures time, memory and growth of every encoding. Raises ArgumentError for invalid settings."""
    settings = checked(settings)
    started = time.perf_counter()
    shape, device = settings.shape, torch.device(settings.device)

    def part(name: str, first: int, last: int) -> Callable[[float], None]:
        return lambda share: progress(name, first + round((last - first) * share), 100)

    passes = {}
    for which, training, first, last in (("forward", False, 0, 30), ("with backward", True, 30, 75)):
        steps, seconds = steps_of(settings, training=training), settings.seconds * SHARES[training]
        passes[which] = take_turns(steps, seconds=seconds, on_round=part(which, first, last))
    build = partial(encoding_of, settings)
    grown = grow(settings.encodings, build, longest=settings.longest, device=device, progress=part("growth", 75, 100))

    def values(name: str) -> Iterator[Value]:
        for which, taken in passes.items():
            alone, layer, plain = taken[f"alone {name}"], taken[f"with {name}"], taken[PLAIN]
            for metric, found in {
                "time alone": alone,
                "time of the layer": layer,
                "share of attention": ratio(alone, plain),
                "overhead": ratio(layer, plain, less=1.0),
            }.items():
                yield from by_round(f"{metric}, {which}", found)
        encoding = build(name)
        count, written = parameter_count(encoding), writes(encoding, shape)
        forward, backward = (
            peak_bytes(Places(build(name), shape, training=training, device=device)) for training in (False, True)
        )
        share = ratio(passes["with backward"][f"alone {name}"], passes["with backward"][PLAIN]).value
        growth = grown[name]
        known = {
            "share of all layers": share if written.queries_keys else share / settings.layers,
            "parameters": count,
            "share of the position and token parameters": count / (count + settings.vocabulary * settings.width),
            "window": encoding.window,
            "written bytes, input": written.input,
            "written bytes, queries and keys": written.queries_keys,
            "written bytes, scores": written.scores,
            "peak bytes, forward": forward,
            "peak bytes, with backward": backward,
            "times what is written": forward / sum(written) if sum(written) else None,
            "exponent of time": growth.exponent("seconds"),
            "exponent of memory": growth.exponent("peak"),
            "longest tried": growth.points[-1].length,
        }
        yield from (Value(metric, value) for metric, value in known.items() if value is not None)
        for length, seconds, peak in growth.points:
            yield from (Value("time by length", seconds, length), Value("peak bytes by length", peak, length))

    layer = [
        value for which, taken in passes.items() for value in by_round(f"time of the layer, {which}", taken[PLAIN])
    ]
    runs = [Run(PLAIN, 0, tuple(layer)), *(Run(name, 0, tuple(values(name))) for name in settings.encodings)]
    name_of_device = torch.cuda.get_device_name() if settings.device == "cuda" else "cpu"
    return CostResult(
        settings=settings,
        frame=Frame(tuple(runs)),
        stopped={name: growth.stopped for name, growth in grown.items() if growth.stopped is not None},
        seconds=time.perf_counter() - started,
        environment=describe_environment() | {"device": name_of_device},
    )


def by_round(metric: str, found: Estimate) -> Iterator[Value]:
    return (Value(metric, value, item=number) for number, value in enumerate(found.values))


def steps_of(settings: CostSettings, *, training: bool) -> dict[str, Step]:
    """Returns the steps to time: attention without positions, and each encoding alone and with attention."""
    torch.manual_seed(0)
    device, shape = torch.device(settings.device), settings.shape
    layer = Attention(dim=settings.width, heads=settings.heads, dropout=0.0)
    steps: dict[str, Step] = {PLAIN: AttentionWith(NoPosition(), layer, shape, training=training, device=device)}
    for name in settings.encodings:
        encoding = encoding_of(settings, name)
        steps[f"alone {name}"] = Places(encoding, shape, training=training, device=device)
        steps[f"with {name}"] = AttentionWith(encoding, layer, shape, training=training, device=device)
    return steps


# --- growth with length ------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """The median time, and the peak memory in bytes, of the forward pass of an encoding by itself at a length."""

    length: int
    seconds: float
    peak: int


@dataclass(frozen=True)
class Growth:
    """The cost of one encoding, for one sequence, at growing lengths. stopped: the reason why longer lengths were not
    tried; None if all lengths were tried."""

    points: Sequence[Point]
    stopped: str | None = None

    def exponent(self, of: Literal["seconds", "peak"], first: int = FIT_FROM) -> float | None:
        """Fits b in cost = a length^b, over the lengths from ``first`` on, or over the last lengths if those are too
        few."""
        fitted = self.points[-max(sum(point.length >= first for point in self.points), FEWEST_TO_FIT) :]
        return fit_exponent([point.length for point in fitted], [getattr(point, of) for point in fitted])


def grow(
    names: Sequence[str],
    build: Callable[[str, Shape], PositionEncoding],
    *,
    longest: int,
    device: torch.device,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Growth]:
    """Measures the forward pass of each encoding alone, at lengths that double up to ``longest``."""
    lengths = doublings(GROWTH_SHAPE.length, longest)
    found: dict[str, list[Point]] = {name: [] for name in names}
    stopped: dict[str, str] = {}
    for index, length in enumerate(lengths):
        shape = dataclasses.replace(GROWTH_SHAPE, length=length)
        for name in names:
            if reason := too_much(found[name], length, seconds=SECONDS / len(names)):
                stopped.setdefault(name, reason)
        steps = {name: Places(build(name, shape), shape, device=device) for name in names if name not in stopped}
        peaks = {name: peak_bytes(step) for name, step in steps.items()}
        for name, taken in take_turns(steps, seconds=0.0, fewest=ROUNDS).items():
            found[name].append(Point(length, taken.value, peaks[name]))
        progress((index + 1) / len(lengths))
    return {name: Growth(found[name], stopped.get(name)) for name in names}


def doublings(first: int, last: int) -> tuple[int, ...]:
    lengths = [first]
    while 2 * lengths[-1] <= last:
        lengths.append(2 * lengths[-1])
    return tuple(lengths)


def too_much(found: Sequence[Point], length: int, *, seconds: float) -> str | None:
    """Returns the reason not to try this length, predicted from the last two lengths; None if it should be tried."""
    if len(found) < 2:
        return None
    before, last = found[-2:]
    peak = last.peak**2 / max(before.peak, 1)
    following = last.seconds * min(last.seconds / before.seconds, MOST_GROWTH)
    taken = CALLS * (math.fsum(point.seconds for point in found) + following)
    if peak > MOST_BYTES:
        return f"{length:,} tokens would need about {peak / 2**30:.0f} GiB, more than {MOST_BYTES / 2**30:.0f}"
    if taken > seconds:
        return f"{length:,} tokens would bring its time to about {taken:.0f} s, more than its share of {seconds:.0f}"
    return None


# --- the plan ------------------------------------------------------------------------------------------------------

GROWTH_TAKES = SECONDS / 2
"""About how many seconds the growth measurement takes for all encodings together."""


def plan_cost(settings: CostSettings, *, kept: bool = False) -> list[Planned]:
    """Estimates how long ``measure_cost`` takes: for attention without position, then for each encoding. kept: whether
    the result is there, so that nothing needs time. Raises ArgumentError for invalid settings."""
    settings = checked(settings)
    counts = {PLAIN: 0} | {name: parameter_count(encoding_of(settings, name)) for name in settings.encodings}
    if kept:
        return [Planned(name, count, 0.0, kept=True) for name, count in counts.items()]
    passes = [_seconds_of_steps(settings, training=training) for training in SHARES]
    seconds = {step: math.fsum(each[step] for each in passes) for step in passes[0]}
    taken = {PLAIN: seconds[PLAIN]}
    for name in settings.encodings:
        taken[name] = seconds[f"alone {name}"] + seconds[f"with {name}"] + GROWTH_TAKES / len(settings.encodings)
    return [Planned(name, count, taken[name]) for name, count in counts.items()]


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
