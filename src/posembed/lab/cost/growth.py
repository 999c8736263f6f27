"""How an encoding's time and memory grow with length, as far as they fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from posembed.lab.cost.memory import peak_bytes
from posembed.lab.cost.places import Places, Shape
from posembed.lab.cost.results import Growth
from posembed.lab.cost.turns import fit_exponent, take_turns
from posembed.layers.base import PositionEncoding

GROWTH_SHAPE = Shape(batch=1, length=512, width=64, heads=2)
"""Growth starts here: one sequence, and the fewest heads that every encoding accepts, to reach long lengths."""
MOST_BYTES = 2 * 2**30
"""A length whose step would need more at its peak is not tried."""
SECONDS = 30.0
"""Each encoding gets an equal share; a length that would take it past its share is not tried."""
ROUNDS = 3
CALLS = ROUNDS + 2
"""One more warms up, and one counts the memory."""
MOST_GROWTH = 4
"""The predicted time of the next length is at most this multiple: twice the length squares to 4, and more is noise."""
FIT_FROM = 2048
"""Below this length, function calls take as long as their work."""
FEWEST_TO_FIT = 3

Build = Callable[[str, Shape], PositionEncoding]


@dataclass(frozen=True)
class Point:
    length: int
    seconds: float
    peak: int


def grow(
    names: Sequence[str],
    build: Build,
    *,
    longest: int,
    device: torch.device,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Growth]:
    """Measures the forward pass of each encoding alone, at lengths that double up to ``longest``; all take turns."""
    lengths = doublings(GROWTH_SHAPE.length, longest)
    found: dict[str, list[Point]] = {name: [] for name in names}
    stopped: dict[str, str] = {}
    for index, length in enumerate(lengths):
        shape = Shape(GROWTH_SHAPE.batch, length, GROWTH_SHAPE.width, GROWTH_SHAPE.heads)
        for name in names:
            reason = too_much(found[name], length, seconds=SECONDS / len(names))
            if reason is not None:
                stopped.setdefault(name, reason)
        steps = {name: Places(build(name, shape), shape, device=device) for name in names if name not in stopped}
        peaks = {name: peak_bytes(step) for name, step in steps.items()}
        for name, taken in take_turns(steps, seconds=0.0, fewest=ROUNDS, device=device).items():
            found[name].append(Point(length, taken.value, peaks[name]))
        progress((index + 1) / len(lengths))
    return {name: _growth(found[name], stopped.get(name)) for name in names}


def doublings(first: int, last: int) -> tuple[int, ...]:
    lengths = [first]
    while 2 * lengths[-1] <= last:
        lengths.append(2 * lengths[-1])
    return tuple(lengths)


def too_much(found: Sequence[Point], length: int, *, seconds: float) -> str | None:
    """Returns why this length is not tried, predicted from the last two; None if it is tried."""
    if len(found) < 2:
        return None
    before, last = found[-2:]
    peak = last.peak**2 / max(before.peak, 1)
    following = last.seconds * min(last.seconds / before.seconds, MOST_GROWTH)
    taken = CALLS * (math.fsum(point.seconds for point in found) + following)
    if peak > MOST_BYTES:
        return f"{length:,} tokens would need about {peak / 2**30:.0f} GiB, more than {MOST_BYTES / 2**30:.0f}"
    if taken > seconds:
        return f"{length:,} tokens would bring it to about {taken:.0f} s, more than its {seconds:.0f}"
    return None


def _growth(found: Sequence[Point], stopped: str | None) -> Growth:
    fitted = [point for point in found if point.length >= FIT_FROM]
    fitted = fitted if len(fitted) >= FEWEST_TO_FIT else list(found[-FEWEST_TO_FIT:])
    lengths = [point.length for point in fitted]
    return Growth(
        lengths=tuple(point.length for point in found),
        seconds=tuple(point.seconds for point in found),
        peak=tuple(point.peak for point in found),
        time_exponent=fit_exponent(lengths, [point.seconds for point in fitted]),
        memory_exponent=fit_exponent(lengths, [point.peak for point in fitted]),
        stopped=stopped,
    )
