"""What a person sees while runs go: a live bar on a terminal, a line a run elsewhere. All on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from posembed.lab.results import RunResult, RunSpec
    from posembed.lab.train import Progress as StepProgress


class ProgressBar:
    """One bar over the steps of all runs, with the name, loss and speed of the one that trains."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        self.specs = list(specs)
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            speed_estimate_period=60,
        )
        self.task = self.bar.add_task("reading results", total=sum(s.steps for s in specs), now="")
        self.running: RunSpec | None = None

    def __enter__(self) -> ProgressBar:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def started(self, spec: RunSpec) -> None:
        self.running = spec
        self._show(0, f"{spec.encoding}, seed {spec.seed}", "")

    def stepped(self, progress: StepProgress) -> None:
        now = f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
        self._show(progress.step, None, now)

    def finished(self, result: RunResult) -> None:
        name = f"{result.spec.encoding}, seed {result.spec.seed}"
        if result.failure:
            self.console.print(f"[red]{name}: failed: {result.failure}")
        else:
            loss, seconds = result.losses[-1][1], result.seconds
            self.console.print(f"{name}: training loss {loss:.3f} after {seconds:.0f} s", highlight=False)
        self._show(result.spec.steps, None, "")

    def _show(self, step: int, description: str | None, now: str) -> None:
        assert self.running is not None
        before = sum(s.steps for s in self.specs[: self.specs.index(self.running)])
        self.bar.update(self.task, completed=before + step, description=description, now=now)
