"""From the runs of a question to their results, the same way for every question."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from posembed.lab.results import RunResult
    from posembed.lab.tasks.task import MeasuredT, SpecT, Task


def answers(
    specs: Sequence[SpecT],
    task: Task[SpecT, MeasuredT],
    out: Path,
    *,
    device: str | None,
    dry_run: bool,
    track: str | None = None,
) -> list[RunResult[SpecT, MeasuredT]]:
    """Train what is not in the folder yet. Ends the command where there is nothing to print after it: a dry run,
    a Ctrl-C, a process that is not the main one."""
    from posembed.cli.compare.plan import print_plan
    from posembed.cli.compare.progress import ProgressBar
    from posembed.lab.environment import make_accelerator
    from posembed.lab.plan import plan
    from posembed.lab.results import RunFolder
    from posembed.lab.sweep import sweep
    from posembed.lab.tracking import Tracked, check_tracker, tracking_folder

    if track:
        check_tracker(track)
    accelerator = make_accelerator(specs[0].precision, device, track=track, tracking=tracking_folder(out))
    if dry_run:
        print_plan(plan(specs, task, accelerator), task.description)
        raise typer.Exit
    try:
        with (
            ProgressBar(specs, quiet=not accelerator.is_main_process) as bar,
            closing(Tracked(accelerator, track, out, bar)) if track else nullcontext(bar) as watcher,
        ):
            results = sweep(specs, task, RunFolder(out, type(task)), accelerator, watcher)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command goes on from {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not accelerator.is_main_process:
        raise typer.Exit
    return results


def finish(results: Sequence[RunResult[SpecT, MeasuredT]], out: Path, *, as_json: bool) -> None:
    """What stands after the answer; and the exit code says so if every run failed."""
    if not as_json:
        print(f"posembed: the runs are in {out}; posembed report {out} makes a page of them", file=sys.stderr)
    if all(result.failure for result in results):
        raise typer.Exit(1)
