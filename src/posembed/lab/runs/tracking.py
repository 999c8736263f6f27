"""A sweep followed in TensorBoard or Weights & Biases, through Accelerate's trackers."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.errors import ArgumentError
from posembed.lab.runs.results import measured_values
from posembed.lab.runs.train import Progress, learning_rate

if TYPE_CHECKING:
    from accelerate import Accelerator

    from posembed.lab.runs.results import RunResult
    from posembed.lab.runs.spec import TrainingSpec
    from posembed.lab.runs.sweep import Watcher

INSTALLED_BY = {"tensorboard": "pip install 'posembed[track]'", "wandb": "pip install wandb"}


def check_tracker(name: str) -> None:
    """Raise ArgumentError for a tracker that is not known, or whose library is not installed."""
    if name not in INSTALLED_BY:
        raise ArgumentError(f"unknown tracker {name!r}; known are {', '.join(INSTALLED_BY)}")
    if find_spec(name) is None:
        raise ArgumentError(f"--track {name} needs the library {name}; install it with: {INSTALLED_BY[name]}")


def tracking_folder(folder: Path) -> Path:
    """Where trackers write in a folder of runs: TensorBoard to a folder a run, Weights & Biases as it likes."""
    return folder / "tracking"


class Tracked:
    """A watcher that logs every step, and the measurements at the end, and tells another watcher all it is told.

    A run of its own for each spec. One that goes on logs the steps since its checkpoint again: the same values.

    Args:
        accelerator: made by ``make_accelerator`` for the tracker.
        tracker: "tensorboard" or "wandb".
        folder: of the runs, in which files go to ``tracking_folder``.
        watcher: told the same.
    """

    def __init__(self, accelerator: Accelerator, tracker: str, folder: Path, watcher: Watcher) -> None:
        self.accelerator = accelerator
        self.tracker = tracker
        self.folder = tracking_folder(folder)
        self.watcher = watcher

    def found(self, result: RunResult[Any, Any]) -> None:
        self.watcher.found(result)

    def started(self, spec: TrainingSpec) -> None:
        if self.tracker == "tensorboard":
            self.accelerator.init_trackers(spec.key())
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            of_run = {
                "name": spec.name,
                "id": spec.key(),
                "resume": "allow",
                "dir": str(self.folder),
                "config": dataclasses.asdict(spec),
            }
            self.accelerator.init_trackers("posembed", init_kwargs={"wandb": of_run})
        self.watcher.started(spec)

    def stepped(self, spec: TrainingSpec, progress: Progress) -> None:
        rate = learning_rate(spec, progress.step - 1)
        values = {"training loss": progress.loss, "learning rate": rate}
        self.accelerator.log(values, step=progress.step)
        self.watcher.stepped(spec, progress)

    def finished(self, result: RunResult[Any, Any]) -> None:
        if result.measurements is not None:
            self.accelerator.log(measured_values(result.measurements), step=result.spec.steps)
        self.close()
        self.watcher.finished(result)

    def close(self) -> None:
        """End the run. Not by Accelerate's end_training, which would end the group of processes too."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
