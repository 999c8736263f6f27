"""Evaluations and a fine-tuning with made-up values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evaluated_models import row_of
from posembed.evaluation.results import Evaluation, Row
from posembed.statistics import Estimate
from posembed.tuning.result import Tuned, with_seeds
from posembed.tuning.settings import TuneSettings

HITS = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
MISSES = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def row(name: str, short: Sequence[float], long: Sequence[float] | None, measure: str, baseline: str = "") -> Row:
    return row_of(name, {measure: {64: short, 128: long}}, baseline=baseline, length=64 if long is None else 128)


def evaluation(measure: str = "recall at 1") -> Evaluation:
    rows = (
        row("old", HITS, None, measure),
        row("tile", HITS, HITS, measure),
        row("mean", HITS, MISSES, measure),
        row("old", HITS, MISSES, measure, "truncated at 64"),
        row("old", HITS, HITS, measure, "chunked at 64"),
    )
    return Evaluation("sentences", (measure,), (64, 128), len(HITS), rows, ("<b>a note</b>",))


def tuned(seeds: int = 3) -> Tuned:
    """A causal model that fine-tuning at the new length helps."""
    measure, found = "perplexity", list[Evaluation]()
    for seed in range(seeds):
        draw = random.Random(seed)

        def values(mean: float, draw: random.Random = draw) -> list[float]:
            return [mean + each % 5 / 20 + draw.uniform(-0.02, 0.02) for each in range(12)]

        same = [2.4 + each % 5 / 20 for each in range(12)]
        rows = (
            row("out", values(2.4), values(2.2), measure),
            row("model", same, None, measure),
            row("out-at-64", values(2.35), None, measure),
            row("out", values(2.4), values(2.39), measure, "sliding windows at 64"),
            row("out-at-64", values(2.35), values(2.3), measure, "chunked at 64"),
            row("model", same, [each + 0.001 for each in same], measure, "chunked at 64"),
        )
        rows = tuple(replace(each, runs=(replace(each.runs[0], seed=seed),)) for each in rows)
        found.append(Evaluation("causal", (measure,), (64, 128), 12, rows, ("12 windows.",), unit="document"))
    settings = TuneSettings(length=128, steps=5, seeds=seeds, method="tile")
    moved = tuple({at: 0.01 * (1 + at // 64) * (1 + seed / 10) for at in range(128)} for seed in range(seeds))
    names = {"old": "out-at-64", "tuned": "out"}
    kept = Estimate(0.934, 0.932, 0.937)
    return Tuned(Path("out"), settings, 5, with_seeds(found), names, kept, "", 64, moved)
