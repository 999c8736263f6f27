"""Results of compare inits as runs would give them, made up."""

from __future__ import annotations

import math
from functools import partial

import torch

from made_up_runs import kin, made_up, save
from posembed.lab.metrics import Measured, by_x
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.tensors import snapshot_steps
from posembed.lab.tasks.language import initial_table
from posembed.lab.tasks.text_specs import CHANGES, LOSS, PERPLEXITY, InitSpec

TYPICAL = {
    "normal-0.02": 1.400,
    "normal-0.01": 1.396,
    "normal-0.05": 1.421,
    "xavier": 1.440,
    "sinusoidal": 1.480,
    "sinusoidal-0.02": 1.362,
    "zero": 1.398,
}
LOOSE = ("normal-0.01", "zero")
"""Starts whose seeds disagree, so that no difference can be told."""


def init_run(init: str, loss: float, *, seed: int = 0, failure: str | None = None, **settings: object) -> RunResult:
    drift = 0.2 * math.sin(5 * seed) + 0.002 * math.sin(7 * seed + len(init))
    changes: tuple[float | None, ...] = (0.0, 0.06, 0.055, None, None, 0.0, 12.0, None, 0.7)
    if init != "zero":
        changes = (0.02, 0.06, 0.055, 0.055 / 0.02, 0.3 + 0.001 * len(init), 40.0, 12.0, 0.01, 0.7)
    known = {LOSS: loss + drift, PERPLEXITY: loss + drift, **dict(zip(CHANGES, changes, strict=True))}
    measured = Measured(tuple(by_x({metric: {None: value} for metric, value in known.items()})))
    curve = tuple((step, loss + drift + 4 * math.exp(-step / 80)) for step in range(6, 601, 6))
    return made_up(
        kin(InitSpec, "inits", seed, {"steps": 600} | settings, init=init),
        position_parameters=6144,
        losses=curve if failure is None else curve[:10],
        measured=measured,
        failure=failure,
        gradient_norms=tuple((step, 2.0 / step + 0.1 * len(init) + drift) for step in range(1, 11)),
    )


def init_runs_of(losses: dict[str, float], *, seeds: int = 1) -> list[RunResult]:
    return [init_run(init, loss, seed=seed) for seed in range(seeds) for init, loss in losses.items()]


def typical(seeds: int) -> list[RunResult]:
    """Some starts told apart from N(0, .02), some not."""
    return [
        init_run(init, loss + (0.03 * (-1) ** seed if init in LOOSE else 0.0), seed=seed)
        for seed in range(seeds)
        for init, loss in TYPICAL.items()
    ]


def tables_of(result: RunResult) -> dict[int, torch.Tensor]:
    """Tables that end alike."""
    end = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).cumsum(dim=0) * 0.02
    initial, steps = initial_table(result.spec.init, 64, 96), result.spec.steps
    return {step: initial + (end - initial) * step / steps for step in (0, *snapshot_steps(steps), steps)}


save_inits = partial(save, tables=tables_of)
