"""Curves of training losses: smoothing, and the first step at or below a given loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOSSES_AVERAGED = 8
"""How many losses ``recent`` averages, of the hundred that a run keeps: a single batch is noisy."""


def smoothed(losses: Sequence[float], *, each_side: int = 3) -> list[float]:
    """Averages each loss with its neighbours, as many before as after; fewer near the ends."""
    means = []
    for index in range(len(losses)):
        side = min(each_side, index, len(losses) - 1 - index)
        near = losses[index - side : index + side + 1]
        means.append(math.fsum(near) / len(near))
    return means


def recent(losses: Sequence[float]) -> list[float]:
    """Averages each loss with those just before it, so that no value uses later steps."""
    parts = [losses[max(end - LOSSES_AVERAGED, 0) : end] for end in range(1, len(losses) + 1)]
    return [math.fsum(part) / len(part) for part in parts]


def final_loss(curve: Sequence[tuple[int, float]]) -> float:
    """Returns the last value of ``recent`` for a curve of (step, loss)."""
    return recent([loss for _, loss in curve])[-1]


def step_at(curve: Sequence[tuple[int, float]], loss: float) -> int | None:
    """Returns the first step of a curve of (step, loss) where ``recent`` is at most ``loss``; None if there is none."""
    means = recent([value for _, value in curve])
    return next((step for (step, _), mean in zip(curve, means, strict=True) if mean <= loss), None)
