"""Results of compare data-efficiency and compare dropout as runs would give them, made up."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from made_up_runs import spec
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import save_tables
from posembed.lab.tasks.amounts_specs import DataSpec, DropoutSpec

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
    known = {field.name for field in dataclasses.fields(kind)} - {"question", *own}
    settings = dataclasses.asdict(spec("learned", seed, steps=300))
    shared = {name: value for name, value in settings.items() if name in known}
    drift = 0.1 * math.sin(5 * seed) + noise * math.sin(7 * seed + 1)
    question = "dropout" if kind is DropoutSpec else "data-efficiency"
    return RunResult(
        spec=kind(**shared, question=question, **own),
        parameters=120_064,
        position_parameters=4096 if own.get("encoding", "learned") == "learned" else 0,
        window=None,
        losses=tuple((step, losses[1] + drift + 3 * math.exp(-step / 60)) for step in range(3, 301, 3)),
        measurements=kind.Measured(held_out=losses[0] + drift, training=losses[1] + drift, train_tokens=tokens),
        failure=None,
        seconds=9.0,
        tokens_per_second=70_000.0,
        environment={"posembed": "0.1.0", "torch": "2.13.0"},
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


def save_amounts(folder: Path, results: list[RunResult]) -> RunFolder:
    """A run folder with these results, and tables for those that have one."""
    there = RunFolder(folder, type(results[0].spec))
    there.prepare(results[0].spec)
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 0.02
    for result in results:
        there.add(result)
        if result.position_parameters:
            along = {step: rows + rows.cumsum(dim=0) * step / 300 for step in (0, 30, 300)}
            save_tables(there.file("tables", result.spec), along)
    return there
