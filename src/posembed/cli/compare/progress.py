"""The progress of runs on stderr: a live bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posembed.cli.console import plain_console, progress_bar

if TYPE_CHECKING:
    from posembed.lab.runs.results import RunResult
    from posembed.lab.runs.spec import TrainingSpec
    from posembed.lab.runs.train import Progress as StepProgress

SECONDS_BETWEEN_LINES = 30.0


class ProgressBar:
    """One bar over the steps of all runs, with the name, loss and speed of the latest run.

    about: a description of the data, printed above the bar.
    """

    def __init__(self, specs: Sequence[TrainingSpec], *, about: str = "", quiet: bool = False) -> None:
        self.about = about
        self.steps_done: dict[TrainingSpec, int] = {}
        self.steps = sum(spec.steps for spec in specs)
        self.console = plain_console(stderr=True, quiet=quiet)
        self.bar = progress_bar(self.console, "{task.fields[now]}", speed_estimate_period=120)
        self.task = self.bar.add_task("starting", total=self.steps, now="")
        self.line_due = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> ProgressBar:
        return self  # the bar appears with the first run, so that an earlier error stands alone

    def _start(self) -> None:
        if not self.bar.live.is_started:
            if self.about:
                self.console.print(self.about, markup=False)
            self.bar.start()

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def found(self, result: RunResult[Any, Any]) -> None:
        self.steps_done[result.spec] = result.spec.steps

    def started(self, spec: TrainingSpec) -> None:
        self._start()
        self.bar.update(self.task, completed=sum(self.steps_done.values()), description=spec.name, now="")

    def stepped(self, spec: TrainingSpec, progress: StepProgress) -> None:
        self._start()
        self.steps_done[spec] = progress.step
        now = f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
        done = sum(self.steps_done.values())
        self.bar.update(self.task, completed=done, description=spec.name, now=now)
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
        self.bar.update(self.task, completed=sum(self.steps_done.values()), now="")
