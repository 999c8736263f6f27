"""From the runs of a question to their results, the same way for every question."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from posembed.errors import ArgumentError

if TYPE_CHECKING:
    from posembed.lab.runs.results import RunResult
    from posembed.lab.tasks.task import MeasuredT, SpecT, Task


@dataclass(frozen=True)
class How:
    """Where the runs go and who follows them: what every question can be told."""

    device: str | None = None
    dry_run: bool = False
    on: str = "here"
    cpus_per_run: int = 1
    track: str | None = None


def answers(
    specs: Sequence[SpecT], task: Task[SpecT, MeasuredT], out: Path, how: How
) -> list[RunResult[SpecT, MeasuredT]]:
    """Train what is not in the folder yet. Ends the command where there is nothing to print after it: a dry run,
    a Ctrl-C, a process that is not the main one."""
    from posembed.cli.compare.plan import print_plan
    from posembed.cli.compare.progress import ProgressBar
    from posembed.lab.runs.cluster import sweep_on_ray
    from posembed.lab.runs.environment import make_accelerator
    from posembed.lab.runs.plan import plan
    from posembed.lab.runs.results import RunFolder
    from posembed.lab.runs.sweep import sweep
    from posembed.lab.runs.tracking import Tracked, check_tracker, tracking_folder

    if how.track:
        check_tracker(how.track)
        if how.on != "here":
            raise ArgumentError("--track follows runs that train here; leave out --on, or leave out --track")
    folder = RunFolder(out, type(task))
    accelerator = make_accelerator(specs[0].precision, how.device, track=how.track, tracking=tracking_folder(out))
    if how.dry_run:
        print_plan(plan(specs, task, accelerator), task.description)
        raise typer.Exit
    try:
        with ProgressBar(specs, about=task.description, quiet=not accelerator.is_main_process) as bar:
            if how.on != "here":
                results = sweep_on_ray(
                    specs,
                    task,
                    folder,
                    address=how.on,
                    device=how.device,
                    cpus_per_run=how.cpus_per_run,
                    watcher=bar,
                )
            elif how.track:
                with closing(Tracked(accelerator, how.track, out, bar)) as tracked:
                    results = sweep(specs, task, folder, accelerator, tracked)
            else:
                results = sweep(specs, task, folder, accelerator, bar)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command goes on from {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not accelerator.is_main_process:
        raise typer.Exit
    return results


def print_json(summary: Any) -> None:
    """A summary for machines. JSON knows no infinity, so a perplexity beyond the largest float is null."""
    values = json.dumps(dataclasses.asdict(summary))
    print(json.dumps(json.loads(values, parse_constant=lambda name: None)))


def finish(results: Sequence[RunResult[SpecT, MeasuredT]], out: Path, *, as_json: bool) -> None:
    """What stands after the answer; and the exit code says so if every run failed."""
    if not as_json:
        print(f"posembed: the runs are in {out}; posembed report {out} makes a page of them", file=sys.stderr)
    if all(result.failure for result in results):
        raise typer.Exit(1)
