"""Results of compare data-efficiency and compare dropout as runs would give them, made up."""

from __future__ import annotations

import math
from typing import Any

from made_up_runs import kin, made_up
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.amounts_specs import DataSpec, DropoutSpec, measured_losses

TOKENS = {"8192": 8192, "1/16": 551_680, "1": 8_826_887}
LOSSES = {
    "learned": (3.10, 2.40, 2.30),
    "sinusoidal": (2.90, 2.45, 2.35),
    "rope": (3.40, 2.20, 2.00),
    "none": (3.08, 2.60, 2.50),
}
"""Held-out losses by amount. Sinusoidal and rope cross learned; none crosses it within its noise."""
RATES = {"0": (2.90, 1.60), "0.1": (2.80, 1.75), "0.3": (2.93, 2.20)}
"""Held-out and training losses by dropout rate."""


def a_run(kind: type[Any], seed: int, losses: tuple[float, float], noise: float, tokens: int, **own: str) -> RunResult:
    drift = 0.1 * math.sin(5 * seed) + noise * math.sin(7 * seed + 1)
    question = "dropout" if kind is DropoutSpec else "data-efficiency"
    return made_up(
        kin(kind, question, seed, {"steps": 300, "width": 64}, **own),
        position_parameters=4096 if own.get("encoding", "learned") == "learned" else 0,
        losses=tuple((step, losses[1] + drift + 3 * math.exp(-step / 60)) for step in range(3, 301, 3)),
        measured=measured_losses(losses[0] + drift, losses[1] + drift, tokens, by_amount=kind is DataSpec),
    )


def data_runs(seeds: int, names: tuple[str, ...] = tuple(LOSSES)) -> list[RunResult]:
    return [
        a_run(
            DataSpec,
            seed,
            (LOSSES[name][number], LOSSES[name][number] - 1 / (1 + 2 * number)),
            0.05 if name == "none" and number == 0 else 0.004 * number * len(name),
            tokens,
            encoding=name,
            amount=amount,
        )
        for seed in range(seeds)
        for number, (amount, tokens) in enumerate(TOKENS.items())
        for name in names
    ]


def dropout_runs(seeds: int) -> list[RunResult]:
    return [
        a_run(DropoutSpec, seed, losses, 0.05 * float(rate) ** 0.5, 32_768, rate=rate, amount="32768")
        for seed in range(seeds)
        for rate, losses in RATES.items()
    ]
