"""Results of compare rows as runs would give them, made up."""

from __future__ import annotations

import math

from made_up_runs import kin, made_up
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.row_specs import RowSpec, measured_rows

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
    settings = {"encoding": encoding or "learned", "steps": 600} | settings
    drift, learned = 0.01 * math.sin(3 * seed + len(name)), not encoding
    places = range(LENGTH)
    rare = [1 - REACHED[lengths](p) for p in places]
    measured = None
    if failure is None:
        attention = [(1 + drift) * math.fsum(1 / (q + 1) for q in range(p, LENGTH)) for p in places]
        measured = measured_rows(
            loss=tuple(
                1.8 + 0.5 / (p + 1) + WORSE[lengths] + drift + (ROWS_COST[lengths] * rare[p] if learned else 0)
                for p in places
            ),
            trained=tuple(round(SEQUENCES * (1 - share)) for share in rare),
            attention=tuple(weight / math.fsum(attention) for weight in attention),
            text_increase={p: (40 + seed) * math.exp(-p / 12) + 0.5 for p in places} if learned else {},
            own_increase=dict.fromkeys(places, 0.5 + drift) if learned else {},
            neighbour_increase={p: 0.1 + 0.05 * math.sin(p + seed) for p in places} if learned else {},
            sequences=SEQUENCES,
        )
    curve = tuple((step, 2 + drift + 4 * math.exp(-step / 80)) for step in range(6, 601, 6))
    return made_up(
        kin(RowSpec, "rows", seed, settings, train_lengths=name),
        position_parameters=LENGTH * 96 if learned else 0,
        losses=curve if failure is None else curve[:10],
        measured=measured,
        failure=failure,
    )


def row_runs(seeds: int = 1, names: tuple[str, ...] = NAMES) -> list[RunResult]:
    return [row_run(name, seed=seed) for seed in range(seeds) for name in names]
