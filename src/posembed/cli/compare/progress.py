"""The progress of runs on stderr: a live bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posembed.cli.console import Bar
from posembed.lab.runs.sweep import Watcher

if TYPE_CHECKING:
    from posembed.lab.runs.results import RunResult
    from posembed.lab.runs.spec import TrainingSpec
    from posembed.lab.runs.train import Progress as StepProgress

SECONDS_BETWEEN_LINES = 30.0


class ProgressBar(Bar, Watcher):
    """One bar over the steps of all runs, with the name, loss and speed of the latest run.

    about: a description of the data, printed above the bar.
    """

    def __init__(self, specs: Sequence[TrainingSpec], *, about: str = "", quiet: bool = False) -> None:
        self.steps_done: dict[TrainingSpec, int] = {}
        self.steps = sum(spec.steps for spec in specs)
        super().__init__("{task.fields[now]}", total=self.steps, about=about, quiet=quiet)
        self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES

    def found(self, result: RunResult[Any, Any]) -> None:
        self.steps_done[result.spec] = result.spec.steps

    def started(self, spec: TrainingSpec) -> None:
        self.show(spec.name, sum(self.steps_done.values()), now="")

    def stepped(self, spec: TrainingSpec, progress: StepProgress) -> None:
        self.steps_done[spec] = progress.step
        now = f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
        done = sum(self.steps_done.values())
        self.show(spec.name, done, now=now)
        if not self.console.is_terminal and time.monotonic() > self.line_due:
            self.console.print(f"{spec.name}: {done / self.steps:.0%} of all steps, {now}")
            self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES

    def finished(self, result: RunResult[Any, Any]) -> None:
        name = result.spec.name
        if result.failure:
            self.console.print(f"{name}: failed: {result.failure}", style="red")
        else:
            self.console.print(f"{name}: training loss {result.losses[-1][1]:.3f} after {result.seconds:.0f} s")
        self.steps_done[result.spec] = result.spec.steps
        self.progress.update(self.task, completed=sum(self.steps_done.values()), now="")
