"""Logs a sweep to TensorBoard or Weights & Biases, through Accelerate's trackers."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.calls import unknown
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
    """Raises ArgumentError for an unknown tracker, or one whose library is not installed."""
    if name not in INSTALLED_BY:
        raise unknown("tracker", name, INSTALLED_BY)
    if find_spec(name) is None:
        raise ArgumentError(f"--track {name} needs the library {name}; install it with: {INSTALLED_BY[name]}")


def tracking_folder(folder: Path) -> Path:
    """Returns the folder for trackers in a run folder. TensorBoard writes one folder per run."""
    return folder / "tracking"


class Tracked:
    """A watcher that logs every step and the final measurements, and forwards everything to another watcher.

    Each spec is one run of the tracker. A resumed run logs the steps since its checkpoint again, with equal values.

    Args:
        accelerator: from ``make_accelerator`` with this tracker.
        tracker: "tensorboard" or "wandb".
        folder: the run folder; files go to its ``tracking_folder``.
        watcher: is told everything too.
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
        """Ends the tracker's run. Accelerate's end_training would end the process group too."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
