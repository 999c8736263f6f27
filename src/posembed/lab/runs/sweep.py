"""Trains the runs of a folder one after another, skipping finished runs. Also estimates the time that the runs take,
and logs them to TensorBoard or Weights & Biases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posembed.calls import unknown
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.cost.instruments import seconds_of, time_batch
from posembed.lab.model import PositionedModel
from posembed.lab.runs.results import RunFolder, RunResult, measured_values
from posembed.lab.runs.spec import MeasuredT, SpecT, TrainingSpec, Watcher
from posembed.lab.runs.train import Progress, check, learning_rate, run
from posembed.lab.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

TOKENS_TO_TIME = 1024
"""A plan times training sequences of about this length in place of longer ones, if they can be shortened."""
INSTALLED_BY = {"tensorboard": "pip install 'posembed[track]'", "wandb": "pip install wandb"}


def sweep(
    specs: Sequence[SpecT],
    task: Task[SpecT, MeasuredT],
    folder: RunFolder[SpecT],
    accelerator: Accelerator,
    watcher: Watcher | None = None,
) -> list[RunResult[SpecT, MeasuredT]]:
    """Trains the runs that are not in the folder yet. Returns the results of all specs, in the order of the specs.

    A run whose loss is not finite is kept as failed, and the others continue. After an interruption, the same call
    continues where the sweep stopped.

    Raises:
        ArgumentError, DataError, RunFolderError: a spec cannot run, or the folder cannot be used. Nothing has trained.
    """
    main = accelerator.is_main_process
    observer = watcher if main and watcher is not None else Watcher()

    def train(missing: Sequence[SpecT], finish: Callable[[RunResult[SpecT, MeasuredT]], None]) -> None:
        accelerator.wait_for_everyone()  # no process writes before all have read
        for spec in missing:
            observer.started(spec)
            finish(run(spec, task, accelerator, folder, partial(observer.stepped, spec)))

    for spec in specs:
        check(spec, task, accelerator.num_processes)
    if main:
        folder.prepare(*specs)
    accelerator.wait_for_everyone()
    return completed(specs, folder, observer, train, keep=main)


def completed(
    specs: Sequence[SpecT],
    folder: RunFolder[SpecT],
    watcher: Watcher,
    train: Callable[[Sequence[SpecT], Callable[[RunResult[SpecT, MeasuredT]], None]], None],
    *,
    keep: bool = True,
) -> list[RunResult[SpecT, MeasuredT]]:
    """Returns the result of each spec. ``train`` gets the specs that are not in the folder, and a callback for each new
    result. The callback saves the result in the folder if ``keep`` is set. Raises RunFolderError if the folder has a
    run of the same name with other settings, such as a file of training lengths that has changed since."""
    done = {result.spec: result for result in folder.results()}
    wanted = {spec.name: spec for spec in specs}
    for spec in done:
        if wanted.get(spec.name, spec) != spec:
            now = dataclasses.asdict(wanted[spec.name])
            differ = [name for name, value in dataclasses.asdict(spec).items() if value != now[name]]
            raise RunFolderError(
                f"{folder.path} holds the run {spec.name!r} with other values of {', '.join(differ)}; use the same "
                "values or files to continue, or another --out"
            )
    for result in [done[spec] for spec in specs if spec in done]:
        watcher.found(result)

    def finish(result: RunResult[SpecT, MeasuredT]) -> None:
        if keep:
            folder.add(result)
        done[result.spec] = result
        watcher.finished(result)

    train([spec for spec in specs if spec not in done], finish)
    return [done[spec] for spec in specs]


# --- the plan ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedRun:
    """A run that is planned, with its parameter counts and the estimated time to train and measure it."""

    spec: TrainingSpec
    parameters: int
    position_parameters: int
    seconds: float

    @property
    def name(self) -> str:
        return self.spec.name

    def to_dict(self) -> dict[str, Any]:
        """Returns the run's name, steps, parameters and time as plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "spec"}
        return {"run": self.name, "steps": self.spec.steps, **values}


def plan(specs: Sequence[SpecT], task: Task[SpecT, MeasuredT], accelerator: Accelerator) -> list[PlannedRun]:
    """Returns the planned run of each spec. Specs that differ only in their seed are timed once, over a few steps.
    Every process calls this. Raises ArgumentError or DataError for a spec that cannot run."""
    for spec in specs:
        check(spec, task, accelerator.num_processes)
    planned: dict[SpecT, PlannedRun] = {}
    for spec in dict.fromkeys(dataclasses.replace(spec, seed=0) for spec in specs):
        model = task.build(spec).to(accelerator.device)
        seconds = _seconds_per_step(spec, task, accelerator, model)
        # A forward pass takes about a third of a step.
        steps = spec.steps + task.tokens_measured(spec) / (spec.batch * spec.train_length) / 3
        planned[spec] = PlannedRun(spec, *model.sizes(), seconds=seconds * steps)
    return [dataclasses.replace(planned[dataclasses.replace(spec, seed=0)], spec=spec) for spec in specs]


def _seconds_per_step(
    spec: SpecT, task: Task[SpecT, MeasuredT], accelerator: Accelerator, model: PositionedModel
) -> float:
    """Times steps without their update of the weights, which takes little and whose optimizer takes seconds to import.
    Of sequences that are too long to try, times shorter ones, and extrapolates from how the time grows with their
    length."""
    share = spec.batch // accelerator.num_processes
    first = accelerator.process_index * share
    model.train()

    def timed(tried: SpecT, step: int, rows: int) -> float:
        def take() -> None:
            batch = [t.to(accelerator.device) for t in task.draw(tried, model, step, slice(first, first + rows))]
            with accelerator.autocast():
                loss = task.loss(model, *batch)
            loss.backward()
            model.zero_grad()

        taken = torch.tensor(seconds_of(take), device=accelerator.device)
        return accelerator.reduce(taken, "mean").item()  # so that all processes decide alike

    tried = spec.shortened(TOKENS_TO_TIME)
    seconds = time_batch(partial(timed, tried), share)
    if tried == spec:
        return seconds
    half = spec.shortened(TOKENS_TO_TIME // 2)
    of_half = time_batch(partial(timed, half), share)
    power = math.log(seconds / of_half) / math.log(tried.train_length / half.train_length)
    return seconds * (spec.train_length / tried.train_length) ** min(max(power, 1.0), 2.0)


# --- trackers ----------------------------------------------------------------------------------------------------


def check_tracker(name: str) -> None:
    """Raises ArgumentError for an unknown tracker, or if its library is not installed."""
    if name not in INSTALLED_BY:
        raise unknown("tracker", name, INSTALLED_BY)
    if find_spec(name) is None:
        raise ArgumentError(f"--track {name} needs the library {name}; install it with: {INSTALLED_BY[name]}")


class Tracked(Watcher):
    """A watcher that logs every step and the final measurements, and forwards everything to another watcher.

    Each spec is one run of the tracker. A resumed run logs the steps since its checkpoint again, with equal values.
    ``accelerator`` must come from ``make_accelerator``, with the same tracker and folder.
    """

    def __init__(self, accelerator: Accelerator, tracker: str, folder: Path, watcher: Watcher) -> None:
        self.accelerator, self.tracker, self.folder, self.watcher = accelerator, tracker, folder, watcher

    def found(self, result: RunResult[Any, Any]) -> None:
        self.watcher.found(result)

    def started(self, spec: TrainingSpec) -> None:
        if self.tracker == "tensorboard":
            self.accelerator.init_trackers(spec.key())
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            about: dict[str, Any] = {"name": spec.name, "id": spec.key(), "resume": "allow", "dir": str(self.folder)}
            about["config"] = dataclasses.asdict(spec)
            self.accelerator.init_trackers("posembed", init_kwargs={"wandb": about})
        self.watcher.started(spec)

    def stepped(self, spec: TrainingSpec, progress: Progress) -> None:
        values = {"training loss": progress.loss, "learning rate": learning_rate(spec, progress.step - 1)}
        self.accelerator.log(values, step=progress.step)
        self.watcher.stepped(spec, progress)

    def finished(self, result: RunResult[Any, Any]) -> None:
        if result.measurements is not None:
            self.accelerator.log(measured_values(result.measurements), step=result.spec.steps)
        self.close()
        self.watcher.finished(result)

    def close(self) -> None:
        """Ends the tracker's run, but not the process group, which Accelerate's end_training would also end."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
