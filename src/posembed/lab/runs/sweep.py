"""Trains many runs, one after another, into one folder. Finished runs are not trained again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import MeasuredT, SpecT, TrainingSpec
from posembed.lab.runs.train import Progress, check, run
from posembed.lab.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator


class Watcher(Protocol):
    """Hears of the progress of a sweep, in the main process."""

    def found(self, result: RunResult[Any, Any]) -> None: ...
    def started(self, spec: TrainingSpec) -> None: ...
    def stepped(self, spec: TrainingSpec, progress: Progress) -> None: ...
    def finished(self, result: RunResult[Any, Any]) -> None: ...


class Silent:
    """A watcher that does nothing."""

    def found(self, result: RunResult[Any, Any]) -> None: ...
    def started(self, spec: TrainingSpec) -> None: ...
    def stepped(self, spec: TrainingSpec, progress: Progress) -> None: ...
    def finished(self, result: RunResult[Any, Any]) -> None: ...


def sweep(
    specs: Sequence[SpecT],
    task: Task[SpecT, MeasuredT],
    folder: RunFolder[SpecT, MeasuredT],
    accelerator: Accelerator,
    watcher: Watcher | None = None,
) -> list[RunResult[SpecT, MeasuredT]]:
    """Returns every spec's result, in the order of the specs, trained now or found in the folder.

    A run whose loss is not finite is kept as failed, and the others continue. An interrupted or killed sweep continues
    where it stopped when it is called again.

    Raises:
        ArgumentError, DataError, RunFolderError: before anything trains.
    """
    if watcher is None or not accelerator.is_main_process:
        watcher = Silent()
    for spec in specs:
        check(spec, task, accelerator.num_processes)
    if accelerator.is_main_process:
        folder.prepare(specs[0])
    accelerator.wait_for_everyone()
    done = {result.spec: result for result in folder.results()}
    accelerator.wait_for_everyone()  # nobody writes before everybody has read
    for spec in specs:
        if spec in done:
            watcher.found(done[spec])
            continue
        watcher.started(spec)
        done[spec] = run(spec, task, accelerator, folder, partial(watcher.stepped, spec))
        if accelerator.is_main_process:
            folder.add(done[spec])
            folder.forget(spec)
        watcher.finished(done[spec])
    return [done[spec] for spec in specs]
