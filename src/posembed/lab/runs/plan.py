"""Estimates what a sweep will take: parameters by counting, time by timing a few steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posembed.lab.runs.spec import MeasuredT, SpecT, TrainingSpec
from posembed.lab.runs.train import check, make_optimizer
from posembed.lab.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

STEPS_TO_TIME = 4


@dataclass(frozen=True)
class PlannedRun:
    spec: TrainingSpec
    parameters: int
    position_parameters: int
    seconds: float
    """The estimated time to train and to measure."""


def plan(specs: Sequence[SpecT], task: Task[SpecT, MeasuredT], accelerator: Accelerator) -> list[PlannedRun]:
    """Returns one entry per spec. Specs that differ only in their seed are timed once.

    Raises:
        ArgumentError, DataError: whatever ``sweep`` would raise before it trains.
    """
    for spec in specs:
        check(spec, task, accelerator.num_processes)
    any_seed = [dataclasses.replace(spec, seed=0) for spec in specs]
    timed = {spec: _plan_one(spec, task, accelerator) for spec in dict.fromkeys(any_seed)}
    return [PlannedRun(spec, *timed[alike]) for spec, alike in zip(specs, any_seed, strict=True)]


def _plan_one(spec: SpecT, task: Task[SpecT, MeasuredT], accelerator: Accelerator) -> tuple[int, int, float]:
    """Returns (parameters, parameters of the encoding, seconds)."""
    model = task.build(spec).to(accelerator.device)
    optimizer = make_optimizer(spec, model)
    times = []
    for step in range(STEPS_TO_TIME):
        started = time.perf_counter()
        batch = [tensor.to(accelerator.device) for tensor in task.draw(spec, model, step, slice(None))]
        loss = task.loss(model, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU
        times.append(time.perf_counter() - started)
    one_step = min(times)
    # A forward pass takes about a third of a step.
    measuring = one_step / 3 * task.tokens_measured(spec) / (spec.batch * spec.train_length)
    parameters = sum(p.numel() for p in model.parameters())
    of_positions = sum(p.numel() for p in model.encoding.parameters())
    return parameters, of_positions, spec.steps * one_step + measuring
