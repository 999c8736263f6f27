"""Trains the runs of a folder one after another, skipping finished runs. Also estimates the time that the runs take,
and logs them to TensorBoard or Weights & Biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from posembed.calls import named
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.cost.instruments import seconds_of, time_batch
from posembed.lab.model import PositionedModel
from posembed.lab.runs.results import RunFolder, RunResult, measured_values
from posembed.lab.runs.spec import SpecT, TrainingSpec
from posembed.lab.runs.train import Step, check, learning_rate, run
from posembed.lab.tasks.task import Task
from posembed.measure.jobs import Planned, Progress, silent

if TYPE_CHECKING:
    from accelerate import Accelerator

INSTALLED_BY = {"tensorboard": "pip install 'posembed[track]'", "wandb": "pip install wandb"}


def sweep(
    specs: Sequence[SpecT],
    task: Task[SpecT],
    folder: RunFolder[SpecT],
    accelerator: Accelerator,
    progress: Progress = silent,
    *,
    finished: Callable[[RunResult[SpecT]], None] = lambda result: None,
    track: str | None = None,
) -> list[RunResult[SpecT]]:
    """Trains the runs that are not in the folder yet. Returns the results of all specs, in the order of the specs.

    A run whose loss is not finite is kept as failed, and the others continue. After an interruption, the same call
    continues where the sweep stopped.

    Args:
        progress: called in the main process after every step, with the name and the loss of its run, and the numbers of
            finished and of planned steps of all runs.
        finished: called in the main process with each new result.
        track: the tracker to log to, as for ``make_accelerator``.

    Raises:
        ArgumentError, DataError, RunFolderError: a spec cannot run, or the folder cannot be used. Nothing has trained.
    """
    main = accelerator.is_main_process

    def train(missing: Sequence[SpecT], stepped: Stepped[SpecT], finish: Finish[SpecT]) -> None:
        accelerator.wait_for_everyone()  # no process writes before all have read
        for spec in missing:
            stepped(spec, None)
            with tracked(accelerator, track if main else None, folder.tracking, spec) as log:

                def on_step(step: Step, spec: SpecT = spec, log: Any = log) -> None:
                    log({"training loss": step.loss, "learning rate": learning_rate(spec, step.step - 1)}, step.step)
                    stepped(spec, step)

                result = run(spec, task, accelerator, folder, on_step)
                if result.measurements is not None:
                    log(measured_values(result.measurements), spec.steps)
            finish(result)

    for spec in specs:
        check(spec, task, accelerator.num_processes)
    if main:
        folder.prepare(*specs)
    accelerator.wait_for_everyone()
    if not main:
        progress, finished = silent, lambda result: None
    return completed(specs, folder, train, progress, finished, keep=main)


Stepped: TypeAlias = Callable[[SpecT, "Step | None"], None]
Finish: TypeAlias = Callable[[RunResult[SpecT]], None]


def completed(
    specs: Sequence[SpecT],
    folder: RunFolder[SpecT],
    train: Callable[[Sequence[SpecT], Stepped[SpecT], Finish[SpecT]], None],
    progress: Progress,
    finished: Finish[SpecT],
    *,
    keep: bool = True,
) -> list[RunResult[SpecT]]:
    """Returns the result of each spec. ``train`` gets the specs that are not in the folder, a callback for each step
    (None before the first), and a callback for each new result. The last callback saves the result in the folder if
    ``keep`` is set. Raises RunFolderError if the folder has a run of the same name with other settings, such as a file
    of training lengths that has changed since."""
    done = {result.spec: result for result in folder.results()}
    wanted = {spec.name: spec for spec in specs}
    for spec in done:
        if wanted.get(spec.name, spec) != spec:
            now = dataclasses.asdict(wanted[spec.name])
            differ = [name for name, value in dataclasses.asdict(spec).items() if value != now[name]]
            raise RunFolderError(
                f"{folder.path} holds the run {spec.name!r} with other values of {', '.join(differ)}; use the same "
                "values or files to continue, or another output folder"
            )
    missing = [spec for spec in specs if spec not in done]
    steps, total = {spec: spec.steps for spec in specs if spec in done}, sum(spec.steps for spec in specs)

    def stepped(spec: SpecT, step: Step | None) -> None:
        now = f" (loss {step.loss:.3f}, {step.tokens_per_second:,.0f} tokens/s)" if step else ""
        steps[spec] = step.step if step else 0
        progress(f"{spec.name}{now}", sum(steps.values()), total)

    def finish(result: RunResult[SpecT]) -> None:
        if keep:
            folder.add(result)
        done[result.spec], steps[result.spec] = result, result.spec.steps
        finished(result)

    train(missing, stepped, finish)
    return [done[spec] for spec in specs]


# --- the plan ----------------------------------------------------------------------------------------------------


def plan(
    specs: Sequence[SpecT], task: Task[SpecT], accelerator: Accelerator, kept: Container[SpecT] = ()
) -> list[Planned]:
    """Returns each spec as a planned job. Specs that differ only in their seed are timed once, over a few steps.
    Every process calls this. kept: specs whose results are in the folder, which take no time.

    Raises:
        ArgumentError, DataError: a spec cannot run.
    """
    for spec in specs:
        check(spec, task, accelerator.num_processes)
    alike: dict[SpecT, list[SpecT]] = {}  # but for their seeds
    for spec in specs:
        alike.setdefault(dataclasses.replace(spec, seed=0), []).append(spec)
    planned: dict[SpecT, Planned] = {}
    for spec, runs in alike.items():
        model = task.build(spec).to(accelerator.device)
        missing = not all(each in kept for each in runs)
        seconds = _seconds_per_step(spec, task, accelerator, model) if missing else 0.0
        # A forward pass takes about a third of a step.
        steps = spec.steps + task.tokens_measured(spec) / (spec.batch * spec.train_length) / 3
        parameters, of_positions = model.sizes()
        one = Planned(spec.name, parameters, seconds * steps, of_positions, spec.steps)
        for each in runs:
            time = 0.0 if each in kept else one.seconds
            planned[each] = dataclasses.replace(one, name=each.name, seconds=time, kept=each in kept)
    return [planned[spec] for spec in specs]


def _seconds_per_step(spec: SpecT, task: Task[SpecT], accelerator: Accelerator, model: PositionedModel) -> float:
    """Times steps without the weight update, which takes little time, and whose optimizer takes seconds to import."""
    share = spec.batch // accelerator.num_processes
    first = accelerator.process_index * share
    model.train()

    def timed(step: int, rows: int) -> float:
        def take() -> None:
            batch = [t.to(accelerator.device) for t in task.draw(spec, model, step, slice(first, first + rows))]
            with accelerator.autocast():
                loss = task.loss(model, *batch)
            loss.backward()
            model.zero_grad()

        taken = torch.tensor(seconds_of(take), device=accelerator.device)
        return accelerator.reduce(taken, "mean").item()  # so that all processes decide alike

    return time_batch(timed, share)


# --- trackers ----------------------------------------------------------------------------------------------------


def check_tracker(name: str) -> None:
    """Raises ArgumentError for an unknown tracker, or if its library is not installed."""
    install = named("tracker", name, INSTALLED_BY)
    if find_spec(name) is None:
        raise ArgumentError(f"--track {name} needs the library {name}; install it with: {install}")


@contextmanager
def tracked(
    accelerator: Accelerator, tracker: str | None, folder: Path, spec: TrainingSpec
) -> Iterator[Callable[[dict[str, float], int], None]]:
    """Yields a function that logs values of a run at a step; without a tracker, it does nothing.

    Each spec is one run of the tracker. A resumed run logs the steps since its checkpoint again, with equal values.
    ``accelerator`` must come from ``make_accelerator``, with the same tracker and folder.
    """
    if tracker == "tensorboard":
        accelerator.init_trackers(spec.key())
    elif tracker is not None:
        folder.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {"name": spec.name, "id": spec.key(), "resume": "allow", "dir": str(folder)}
        about["config"] = dataclasses.asdict(spec)
        accelerator.init_trackers("posembed", init_kwargs={"wandb": about})
    try:
        yield lambda values, step: accelerator.log(values, step=step)
    finally:  # ends the tracker's run, but not the process group, which Accelerate's end_training would also end
        for each in accelerator.trackers:
            each.finish()
        accelerator.trackers = []
