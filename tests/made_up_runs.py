"""Results as runs would give them, made up, so that every shape of outcome can be shown and told."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posembed.lab.measure import bits_per_byte
from posembed.lab.metrics import Measured, by_x
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.tensors import save_attention, save_tables, snapshot_steps
from posembed.lab.tasks.text_specs import (
    BITS,
    CHUNKED_SAME,
    CHUNKED_WHOLE,
    REPEAT_GAIN,
    SAME_TOKENS,
    WHOLE_WINDOWS,
    LengthSpec,
)
from posembed.measure.metrics import Metric

LENGTHS = (64, 128, 256, 512)
GAPS = (32, 64, 128, 256)

# Perplexities of the same tokens at LENGTHS; None: no position there.
TYPICAL: dict[str, tuple[float | None, ...]] = {
    "learned": (4.05, None, None, None),
    "rolling": (3.71, 3.62, 3.57, 3.54),
    "sinusoidal": (4.02, 6.81, 14.9, 31.3),
    "rope": (3.70, 4.42, 9.85, 21.9),
    "alibi": (4.12, 4.03, 3.98, 3.96),
}
NO_REACH = (0.004, 0.001, 0.0, 0.001)


def spec(encoding: str, seed: int = 0, **others: object) -> LengthSpec:
    settings: dict[str, object] = {
        "data": "stdlib",
        "data_sha256": "0" * 64,
        "tokenizer": "bytes",
        "train_length": LENGTHS[0],
        "test_lengths": LENGTHS,
        "layers": 3,
        "width": 96,
        "heads": 4,
        "window": 16,
        "ring": 16,
        "dropout": 0.0,
        "steps": 700,
        "batch": 32,
        "learning_rate": 6e-3,
        "warmup": 70,
        "weight_decay": 0.1,
        "clip": 1.0,
        "precision": "no",
        "test_tokens": 32_768,
    }
    return LengthSpec(question="lengths", encoding=encoding, seed=seed, **(settings | others))  # type: ignore[arg-type]


def kin(kind: type[Any], question: str, seed: int, settings: Mapping[str, object], **own: object) -> Any:
    """Returns a spec of another question with these settings, and otherwise those of ``spec``."""
    shared = dataclasses.asdict(spec("learned", seed)) | settings
    known = {field.name for field in dataclasses.fields(kind)} - {"question", *own}
    return kind(**{name: value for name, value in shared.items() if name in known}, question=question, **own)


def made_up(
    spec: Any,
    losses: Sequence[tuple[int, float]],
    measured: Any,
    *,
    position_parameters: int = 0,
    failure: str | None = None,
    window: int | None = None,
    gradient_norms: Sequence[tuple[int, float]] = (),
) -> RunResult:
    return RunResult(
        spec=spec,
        parameters=354_528 + position_parameters,
        position_parameters=position_parameters,
        window=window,
        losses=tuple(losses),
        measurements=None if failure else measured,
        failure=failure,
        seconds=51.0,
        tokens_per_second=28_000.0,
        environment={"posembed": "0.1.0", "torch": "2.13.0", "processor": "a made-up one", "cores": "2"},
        gradient_norms=tuple(gradient_norms),
    )


def run(
    encoding: str,
    perplexities: tuple[float | None, ...] | None = None,
    *,
    seed: int = 0,
    gains: tuple[float | None, ...] = NO_REACH,
    failure: str | None = None,
    **settings: object,
) -> RunResult:
    """One run, its perplexities a little apart by seed."""
    of = spec(encoding, seed, **settings)
    lengths = of.test_lengths
    measured = None
    if failure is None:
        drift = 1 + 0.01 * math.sin(3 * seed + len(encoding))
        chosen = perplexities or TYPICAL[encoding]
        same = {n: None if p is None else math.log(p * drift) for n, p in zip(lengths, chosen, strict=True)}
        first = next((loss for loss in same.values() if loss is not None), 1.5)
        whole = {n: None if loss is None else loss + 0.03 for n, loss in same.items()}
        known: dict[Metric, Mapping[int, float | None]] = {
            SAME_TOKENS: same,
            WHOLE_WINDOWS: whole,
            CHUNKED_SAME: dict.fromkeys(lengths, first),
            CHUNKED_WHOLE: dict.fromkeys(lengths, first + 0.03),
            BITS: {n: bits_per_byte(loss, 1.0) for n, loss in whole.items()},
            REPEAT_GAIN: {
                gap: None if same[lengths[-1]] is None and gap > GAPS[0] else gain
                for gap, gain in zip(GAPS, gains, strict=True)
            },
        }
        measured = Measured(tuple(by_x(known)))
    last = 700 if failure is None else 84
    return made_up(
        of,
        position_parameters={"learned": 6144, "rolling": 1536}.get(encoding, 0),
        window=16 if encoding == "rolling" or encoding.endswith("+window") else None,
        losses=tuple((step, 1.3 + 4.2 * math.exp(-step / 120) + 0.01 * seed) for step in range(7, last + 1, 7)),
        measured=measured,
        failure=failure,
    )


def runs(seeds: int = 1, names: tuple[str, ...] = tuple(TYPICAL)) -> list[RunResult]:
    return [run(name, seed=seed) for seed in range(seeds) for name in names]


Rows = Callable[[RunResult], Mapping[int, torch.Tensor]]


def save(folder: Path, results: Sequence[RunResult], tables: Rows | None = None) -> RunFolder:
    """A run folder with these results, tables (by training step) for those that have one, and for language models where
    the heads look."""
    there = RunFolder(folder, type(results[0].spec))
    there.prepare(results[0].spec)
    generator = torch.Generator().manual_seed(0)
    for result in results:
        there.add(result)
        steps, width = result.spec.steps, result.spec.width
        if tables is not None and result.position_parameters:
            save_tables(there.file("tables", result.spec), tables(result))
        elif result.position_parameters:
            rows = torch.randn(result.position_parameters // width, width, generator=generator) * 0.02
            along = {step: rows.cumsum(dim=0) * step / steps for step in snapshot_steps(steps)}
            save_tables(there.file("tables", result.spec), {0: rows, **along, steps: rows.cumsum(dim=0)})
        if result.failure is None and isinstance(result.spec, LengthSpec):
            weights = torch.rand(3, 4, LENGTHS[0], generator=generator).cumsum(dim=2).flip(2)
            save_attention(there.file("attention", result.spec), weights / weights.sum(dim=2, keepdim=True))
    return there
