"""Trains and measures one run.

Every random draw (text, positions, dropout) depends only on the seed and the step. The weights and the optimizer are
therefore the whole state of a run, and a resumed run gives bit for bit the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from posembed.errors import ArgumentError
from posembed.lab.model import PositionedModel
from posembed.lab.runs.environment import describe_environment
from posembed.lab.runs.results import NORMS_AT_START, RunFolder, RunResult, measured_values
from posembed.lab.runs.spec import SpecT, TrainingSpec
from posembed.lab.runs.tensors import (
    State,
    load_checkpoint,
    save_attention,
    save_checkpoint,
    save_tables,
    snapshot_steps,
)
from posembed.lab.tasks.task import Task, torch_seed
from posembed.measure.jobs import delayed_signals

if TYPE_CHECKING:
    from accelerate import Accelerator

SECONDS_BETWEEN_CHECKPOINTS = 15.0
LOSSES_KEPT = 100
FINAL_LEARNING_RATE = 0.1  # the learning rate at the last step, as a share of the peak


@dataclass(frozen=True)
class Step:
    """What a run did in a step. tokens_per_second: the mean since the run started or continued."""

    step: int
    loss: float
    tokens_per_second: float


def run(
    spec: SpecT,
    task: Task[SpecT],
    accelerator: Accelerator,
    folder: RunFolder[SpecT] | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> RunResult[SpecT]:
    """Trains and measures one run. With a folder, continues from the spec's checkpoint, if any, and writes checkpoints.

    Every process of the accelerator calls this function. Each takes its share of every batch and of the measured text,
    all return the same numbers, and only the main process writes files.

    Raises:
        ArgumentError, DataError: the spec cannot run. Nothing has trained.
        KeyboardInterrupt: a signal arrived. The current step is finished and a checkpoint is written first.
    """
    check(spec, task, accelerator.num_processes)
    model = task.build(spec).to(accelerator.device)
    own = folder if accelerator.is_main_process else None
    state, measurements = State(), None
    keep_rows(model, state, 0)
    try:
        failure = _train(spec, task, accelerator, model, state, folder, on_step)
        model.eval()
        if failure is None:
            measurements = task.measure(spec, model, accelerator)
            for name, value in measured_values(measurements).items():
                if failure is None and not math.isfinite(value):
                    what = " at ".join(name.removeprefix("log ").split("/"))
                    failure = f"{what} was {value} on held-out data; try a lower learning rate"
        if failure is None and own is not None:
            attention = task.attention(spec, model, accelerator.device)
            if attention is not None:
                save_attention(own.file("attention", spec), attention)
    finally:
        accelerator.free_memory()
    keep_rows(model, state, spec.steps)
    if own is not None and state.tables:
        save_tables(own.file("tables", spec), state.tables)
    trained = state.step * spec.batch * spec.train_length
    return RunResult(
        spec,
        *model.sizes(),
        window=model.encoding.window,
        losses=tuple(state.losses),
        gradient_norms=tuple(state.gradient_norms),
        measurements=None if failure else measurements,
        failure=failure,
        seconds=state.seconds,
        tokens_per_second=trained / max(state.seconds, 1e-9),
        environment=describe_environment(accelerator),
    )


def check(spec: SpecT, task: Task[SpecT], processes: int = 1) -> None:
    """Raises ArgumentError or DataError for a spec that cannot be trained or measured."""
    if spec.batch % processes:
        raise ArgumentError(
            f"batch={spec.batch} cannot be shared evenly by {processes} processes; "
            f"use a multiple of {processes}, such as {max(spec.batch // processes, 1) * processes}"
        )
    task.check(spec)
    try:
        task.try_build(spec)
    except ArgumentError as error:
        raise ArgumentError(f"{spec.compared}: {error}") from error


def keep_rows(model: PositionedModel, state: State, step: int) -> None:
    """Adds a copy (N, D) of the encoding's table, on the CPU, to ``state.tables`` if the encoding has a table."""
    table = model.encoding.table()
    if table is not None:
        state.tables[step] = table.detach().cpu().clone()


def learning_rate(spec: TrainingSpec, step: int) -> float:
    """Returns the learning rate of a step: linear warm-up, then a cosine decay from the peak to a tenth of it."""
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    progress = (step - spec.warmup) / max(spec.steps - 1 - spec.warmup, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return spec.learning_rate * (FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine)


def make_optimizer(spec: TrainingSpec, model: PositionedModel) -> torch.optim.Optimizer:
    """Returns AdamW with weight decay for matrices only, not for biases, norms, or the encoding's parameters."""
    positions = set(model.encoding.parameters())
    decayed = [p for p in model.parameters() if p.dim() > 1 and p not in positions]
    others = [p for p in model.parameters() if p.dim() <= 1 or p in positions]
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=(0.9, 0.95), fused=True)


def _train(
    spec: SpecT,
    task: Task[SpecT],
    accelerator: Accelerator,
    model: PositionedModel,
    state: State,
    folder: RunFolder[SpecT] | None,
    on_step: Callable[[Step], None],
) -> str | None:
    """Trains up to ``spec.steps`` and updates ``state``. Returns the reason if training failed, or None."""
    optimizer = make_optimizer(spec, model)
    if folder is not None:
        load_checkpoint(folder.file("checkpoints", spec), model, optimizer, state)
    model.train()
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    share = spec.batch // accelerator.num_processes
    mine = slice(accelerator.process_index * share, (accelerator.process_index + 1) * share)
    keep_loss_every = max(spec.steps // LOSSES_KEPT, 1)
    keep_rows_after = snapshot_steps(spec.steps)
    first_step, seconds_before = state.step, state.seconds
    started = saved = time.perf_counter()
    with delayed_signals() as signals:
        for step in range(first_step, spec.steps):
            batch = [tensor.to(accelerator.device) for tensor in task.draw(spec, model, step, mine)]
            torch.manual_seed(torch_seed(spec, step, accelerator.process_index))  # for dropout
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(spec, step)
            loss = task.loss(wrapped, *batch)
            mean = accelerator.reduce(loss.detach(), "mean").item()
            if not math.isfinite(mean):
                return f"the loss was {mean} at step {step + 1} of {spec.steps}; try a lower learning rate"
            generator = torch.Generator().manual_seed(torch_seed(spec, step))
            added = model.encoding.auxiliary_loss(spec.train_length, generator)
            accelerator.backward(loss if added is None else loss + added)
            norm = accelerator.clip_grad_norm_(wrapped.parameters(), spec.clip)
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            state.step, state.seconds = step + 1, seconds_before + now - started
            kept = state.step % keep_loss_every == 0 or state.step == spec.steps
            if kept:
                state.losses.append((state.step, mean))
            if kept or state.step <= NORMS_AT_START:
                state.gradient_norms.append((state.step, float(norm)))
            if state.step in keep_rows_after:
                keep_rows(model, state, state.step)
            tokens = (state.step - first_step) * spec.batch * spec.train_length
            on_step(Step(state.step, mean, tokens / (now - started)))
            due = now - saved > SECONDS_BETWEEN_CHECKPOINTS or state.step == spec.steps or signals
            if due and folder is not None and accelerator.is_main_process:
                save_checkpoint(folder.file("checkpoints", spec), model, optimizer, state)
                saved = now
            if signals:
                raise KeyboardInterrupt
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        return f"weights were not finite after step {spec.steps}; try a lower learning rate"
    return None
