"""What a person sees while runs go, on stderr: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from posembed.lab.results import RunResult
    from posembed.lab.spec import TrainingSpec
    from posembed.lab.train import Progress as StepProgress

SECONDS_BETWEEN_LINES = 30.0


class ProgressBar:
    """One bar over the steps of all runs, with the name, loss and speed of the one that trains."""

    def __init__(self, specs: Sequence[TrainingSpec], *, quiet: bool = False) -> None:
        self.specs = list(specs)
        self.steps_before = 0
        self.steps = sum(spec.steps for spec in specs)
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            speed_estimate_period=120,
            expand=True,
        )
        self.task = self.bar.add_task("starting", total=self.steps, now="")
        self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> ProgressBar:
        return self  # the bar appears with the first run, so that a mistake said before it stands alone

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def started(self, spec: TrainingSpec) -> None:
        self.bar.start()
        # Runs that were finished before are passed over.
        self.steps_before = sum(s.steps for s in self.specs[: self.specs.index(spec)])
        self.bar.update(self.task, completed=self.steps_before, description=spec.name, now="")

    def stepped(self, progress: StepProgress) -> None:
        now = f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
        done = self.steps_before + progress.step
        self.bar.update(self.task, completed=done, now=now)
        if not self.console.is_terminal and time.monotonic() > self.line_due:
            self.console.print(f"{self.bar.tasks[0].description}: {done / self.steps:.0%} of all, {now}")
            self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES

    def finished(self, result: RunResult[Any, Any]) -> None:
        name = result.spec.name
        if result.failure:
            self.console.print(f"{name}: failed: {result.failure}", style="red")
        else:
            self.console.print(f"{name}: training loss {result.losses[-1][1]:.3f} after {result.seconds:.0f} s")
        self.bar.update(self.task, completed=self.steps_before + result.spec.steps, now="")
