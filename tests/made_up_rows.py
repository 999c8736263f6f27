"""Results of compare rows as runs would give them, made up."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import torch

from made_up_runs import spec
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import save_tables, snapshot_steps
from posembed.lab.tasks.row_specs import RowMeasurements, RowSpec

LENGTH, SEQUENCES = 64, 19_200
REACHED = {
    "full": lambda p: 1.0,
    "uniform": lambda p: 1 - p / LENGTH,
    "short": lambda p: 1 - math.log(p + 1) / math.log(LENGTH + 1),
}
"""The share of sequences that reach each row."""
WORSE = {"full": 0.0, "uniform": 0.1, "short": 0.4}
ROWS_COST = {"full": 0.0, "uniform": 0.02, "short": 0.3}
"""What the rows of rarely reached positions cost, beyond what the lengths cost the model."""
NAMES = ("full", "uniform", "short", "full+sinusoidal", "uniform+sinusoidal", "short+sinusoidal")


def row_run(name: str, *, seed: int = 0, failure: str | None = None, **settings: object) -> RunResult:
    lengths, _, encoding = name.partition("+")
    of = dataclasses.asdict(spec(encoding or "learned", seed, **({"steps": 600} | settings)))
    known = {field.name for field in dataclasses.fields(RowSpec)} - {"question", "train_lengths"}
    shared = {key: value for key, value in of.items() if key in known}
    drift, learned = 0.01 * math.sin(3 * seed + len(name)), not encoding
    places = range(LENGTH)
    rare = [1 - REACHED[lengths](p) for p in places]
    measured = None
    if failure is None:
        attention = [(1 + drift) * math.fsum(1 / (q + 1) for q in range(p, LENGTH)) for p in places]
        measured = RowMeasurements(
            loss=tuple(
                1.8 + 0.5 / (p + 1) + WORSE[lengths] + drift + (ROWS_COST[lengths] * rare[p] if learned else 0)
                for p in places
            ),
            trained=tuple(round(SEQUENCES * (1 - share)) for share in rare),
            attention=tuple(weight / math.fsum(attention) for weight in attention),
            text_increase={p: (40 + seed) * math.exp(-p / 12) + 0.5 for p in places} if learned else {},
            own_increase=dict.fromkeys(places, 0.5 + drift) if learned else {},
            neighbour_increase={p: 0.1 + 0.05 * math.sin(p + seed) for p in places} if learned else {},
        )
    curve = tuple((step, 2 + drift + 4 * math.exp(-step / 80)) for step in range(6, 601, 6))
    return RunResult(
        spec=RowSpec(**shared, question="rows", train_lengths=name),
        parameters=120_000,
        position_parameters=LENGTH * 96 if learned else 0,
        window=None,
        losses=curve if failure is None else curve[:10],
        measurements=measured,
        failure=failure,
        seconds=20.0,
        tokens_per_second=60_000.0,
        environment={"posembed": "0.1.0", "torch": "2.13.0"},
    )


def row_runs(seeds: int = 1, names: tuple[str, ...] = NAMES) -> list[RunResult]:
    return [row_run(name, seed=seed) for seed in range(seeds) for name in names]


def save_rows(folder: Path, results: list[RunResult]) -> RunFolder:
    """A run folder with these results, and a table of each learned run."""
    there = RunFolder(folder, RowSpec)
    there.prepare(results[0].spec)
    generator = torch.Generator().manual_seed(0)
    for result in results:
        there.add(result)
        if result.position_parameters:
            rows = torch.randn(LENGTH, 96, generator=generator) * 0.02
            along = {step: rows.cumsum(dim=0) * step / 600 for step in snapshot_steps(600)}
            save_tables(there.file("tables", result.spec), {0: rows, **along, 600: rows.cumsum(dim=0)})
    return there
