"""What a sweep will take, before it is run: parameters by counting, time by timing a few steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posembed.lab import measure
from posembed.lab.data import Corpus
from posembed.lab.results import RunSpec
from posembed.lab.train import build_model, check, draw_batch, make_optimizer, training_loss

if TYPE_CHECKING:
    from accelerate import Accelerator

STEPS_TO_TIME = 4


@dataclass(frozen=True)
class PlannedRun:
    spec: RunSpec
    parameters: int
    position_parameters: int
    seconds: float
    """Estimated: to train, and to measure."""


def plan(specs: Sequence[RunSpec], corpus: Corpus, accelerator: Accelerator) -> list[PlannedRun]:
    """One entry a spec; each encoding is timed once. Raises what ``sweep`` would before it trains."""
    for spec in specs:
        check(spec, corpus, accelerator.num_processes)
    timed = {spec.encoding: _plan_one(spec, corpus, accelerator) for spec in reversed(specs)}
    return [PlannedRun(spec, *timed[spec.encoding]) for spec in specs]


def _plan_one(spec: RunSpec, corpus: Corpus, accelerator: Accelerator) -> tuple[int, int, float]:
    """(parameters, parameters of the encoding, seconds)."""
    model = build_model(spec, corpus.vocabulary).to(accelerator.device)
    optimizer = make_optimizer(spec, model)
    times = []
    for step in range(STEPS_TO_TIME):
        started = time.perf_counter()
        ids, position_ids = (tensor.to(accelerator.device) for tensor in draw_batch(spec, corpus, model, step))
        loss = training_loss(model, ids, position_ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU
        times.append(time.perf_counter() - started)
    one_step = min(times)
    # A forward pass is about a third of a step, and a token costs about the same in measuring as in training.
    measured = measure.tokens_measured(spec.train_length, spec.test_lengths, spec.test_tokens)
    measuring = one_step / 3 * measured / (spec.batch * spec.train_length)
    parameters = sum(p.numel() for p in model.parameters())
    of_positions = sum(p.numel() for p in model.encoding.parameters())
    return parameters, of_positions, spec.steps * one_step + measuring
