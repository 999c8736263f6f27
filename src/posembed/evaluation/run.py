"""The jobs of an evaluation: which rows it has, and running the jobs whose counts are not kept yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from posembed.checkpoints.rebuild import first_line
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.measures import MEASUREMENTS, Job
from posembed.evaluation.results_file import Counts, ResultsFile
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import Sample
from posembed.evaluation.tokens import Tick

Progress = Callable[[str, int, int], None]
"""Called with the name of the running checkpoint, the number of tokens done and their total."""

SHORTEST = 16
"""The smallest length, in tokens, that can be evaluated."""


class PlannedRow(NamedTuple):
    """A row before it is measured. baseline: as in ``Row``. jobs: None at lengths that the checkpoint does not take."""

    runnable: Runnable
    baseline: str
    jobs: Mapping[int, Job | None]


def planned_rows(
    runnables: Sequence[Runnable], samples: Mapping[str, Sample], lengths: Sequence[int], setting: int
) -> list[PlannedRow]:
    """One row per checkpoint, then the baselines if some length is above the original length."""

    def job(runnable: Runnable, length: int, limit: int, fit: str) -> Job:
        text = lengths[-1] if MEASUREMENTS[runnable.kind].whole_texts else length
        chunk = min(length, limit)
        return Job(runnable, samples[runnable.name], setting, text, chunk, "whole" if chunk == text else fit)

    rows = []
    for runnable in runnables:
        longest = lengths[-1] if runnable.length is None else runnable.length
        jobs = {length: job(runnable, length, length, "chunked") if length <= longest else None for length in lengths}
        rows.append(PlannedRow(runnable, "", jobs))
    known = [(runnable.old_length, runnable) for runnable in runnables if runnable.old_length is not None]
    if known:
        # Among checkpoints with the same original length, prefer one that was not made longer.
        old, oldest = min(known, key=lambda pair: (pair[0], pair[1].length or math.inf))
        if SHORTEST <= old < lengths[-1]:
            for name, fit in MEASUREMENTS[oldest.kind].baselines.items():
                jobs = {length: job(oldest, length, old, fit) for length in lengths}
                rows.append(PlannedRow(oldest, f"{name} at {old}", jobs))
    return rows


def run_missing(plan: Sequence[PlannedRow], results: ResultsFile, *, device: torch.device, progress: Progress) -> None:
    """Run every job whose counts are not in the results, and add them one by one."""
    jobs = [job for row in plan for job in row.jobs.values() if job is not None]
    missing = {job.key: job for job in jobs if job.key not in results}
    total, done = sum(job.tokens for job in missing.values()), 0
    # Grouped by checkpoint, so that each is loaded only once.
    for runnable in dict.fromkeys(job.runnable for job in missing.values()):
        model = runnable.model(device)

        def tick(tokens: int, name: str = runnable.name) -> None:
            nonlocal done
            done += tokens
            progress(name, done, total)

        for key, job in missing.items():
            if job.runnable is runnable:
                counts = run_job(model, job, tick)
                results.add(key, counts, checkpoint=runnable.name, length=job.length, chunk=job.chunk, fit=job.fit)
        del model  # before the next one is loaded


def run_job(model: nn.Module, job: Job, tick: Tick) -> Counts:
    """The counts of each text; None if a count is not finite."""
    try:
        with torch.inference_mode():
            counts = MEASUREMENTS[job.runnable.kind].count(model, job, tick)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"{job.runnable.name}: cannot be run on {job.chunk} tokens at a time ({first_line(error)}); leave out "
            "that length"
        ) from error
    return {
        name: [number if math.isfinite(number) else None for number in numbers.tolist()]
        for name, numbers in counts.items()
    }


def device_named(name: str | torch.device | None) -> torch.device:
    """The named device; without a name, the machine's accelerator or else its CPU.

    Raises:
        ArgumentError: the device does not exist here.
    """
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArgumentError(
            f"device: expected one that can be used here, such as 'cpu', or None; got {name!r} ({first_line(error)})"
        ) from error
