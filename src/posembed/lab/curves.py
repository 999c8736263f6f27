"""Training losses as curves: smoothed, and the step at which they come down to a given loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOSSES_AVERAGED = 8
"""By ``recent``, of the some hundred that a run keeps: a single batch says little."""


def smoothed(losses: Sequence[float], *, each_side: int = 3) -> list[float]:
    """The mean of each loss and its neighbours, as many before as after: fewer towards the ends."""
    means = []
    for index in range(len(losses)):
        side = min(each_side, index, len(losses) - 1 - index)
        near = losses[index - side : index + side + 1]
        means.append(math.fsum(near) / len(near))
    return means


def recent(losses: Sequence[float]) -> list[float]:
    """The mean of each loss and those just before it: no loss is known before it was trained for."""
    parts = [losses[max(end - LOSSES_AVERAGED, 0) : end] for end in range(1, len(losses) + 1)]
    return [math.fsum(part) / len(part) for part in parts]


def final_loss(curve: Sequence[tuple[int, float]]) -> float:
    """The last of ``recent``, of a curve of (step, loss)."""
    return recent([loss for _, loss in curve])[-1]


def step_at(curve: Sequence[tuple[int, float]], loss: float) -> int | None:
    """The first step of a curve of (step, loss) at which ``recent`` is at or below ``loss``, if there is one."""
    means = recent([value for _, value in curve])
    return next((step for (step, _), mean in zip(curve, means, strict=True) if mean <= loss), None)
