"""The plan of an evaluation: its rows, and the jobs behind them. Runs the jobs whose results are not kept yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from posembed.errors import CheckpointError, PosEmbedError
from posembed.evaluation.counts import Counts, Tick
from posembed.evaluation.results import UNITS, Evaluation, Row, Unit
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.settings import SHORTEST, Kind
from posembed.measure.frame import Run, Value
from posembed.measure.jobs import Kept, Progress, silent
from posembed.measure.processes import ALONE, Processes
from posembed.words import last_line, listed


class AnyJob(Protocol):
    """One run of a checkpoint over texts.

    key: a hash of everything that the counts depend on. tokens: the number of tokens to read. at_once: the number of
    tokens per run of the model.
    """

    @property
    def runnable(self) -> Runnable: ...
    @property
    def key(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def at_once(self) -> int: ...

    def count(self, model: nn.Module, tick: Tick) -> Counts: ...


class PlannedRow(NamedTuple):
    """A row before it is measured.

    jobs: the job for each length, or None if the checkpoint does not take that length. texts: a hash of the texts.
    counts: the prefix of this row's measures in a job's results, such as "max ".
    """

    runnable: Runnable
    baseline: str
    texts: str
    jobs: Mapping[int, AnyJob | None]
    counts: str = ""

    @property
    def name(self) -> str:
        return f"{self.runnable.name}, {self.baseline}" if self.baseline else self.runnable.name

    def finished(self, plan: Plan) -> Row:
        # Texts of another tokenizer are other items, which nothing is paired with.
        own = "" if self.texts == plan.rows[0].texts else f"{self.runnable.name} "
        values = [
            Value(measure, total, length, f"{own}{item}" if own else item, weight)
            for measure in plan.measures
            for length, job in self.jobs.items()
            if job is not None
            for item, total, weight in zip(
                plan.owners or itertools.count(), *plan.kept[job.key][f"{self.counts}{measure}"], strict=False
            )
        ]
        run = Run(self.name, plan.seed, tuple(values))
        return Row(self.runnable.name, self.baseline, self.runnable.length, (run,))


@dataclass(frozen=True)
class Plan:
    """An evaluation before it is run: its rows, and what ``Evaluation`` says about them.

    number: the number of texts or queries. notes: remarks that do not depend on the results. unit: what an item is,
    such as "image". owners: the item of each text or query, if several share an item. seed: the seed of the measured
    fine-tuning. remedy: what to do if a model cannot be run. processes: they divide the jobs; each keeps its results.
    """

    kind: Kind
    measures: tuple[str, ...]
    lengths: tuple[int, ...]
    number: int
    rows: Sequence[PlannedRow]
    notes: tuple[str, ...]
    kept: Kept
    device: torch.device
    unit: Unit = "text"
    owners: Sequence[int] | None = None
    seed: int = 0
    remedy: str = "leave out that length"
    processes: Processes = ALONE

    @property
    def jobs(self) -> dict[str, AnyJob]:
        """All jobs by key. Rows and lengths that read the same tokens in the same way share a job."""
        return {job.key: job for row in self.rows for job in row.jobs.values() if job is not None}

    @property
    def missing(self) -> dict[str, AnyJob]:
        return {key: job for key, job in self.jobs.items() if key not in self.kept}

    @property
    def paths(self) -> tuple[str, ...]:
        """A sentence with the whole paths of the checkpoints whose rows name only the end of the path."""
        found = {row.runnable.name: row.runnable.path for row in self.rows if row.runnable.path}
        return (f"{listed([f'{name} is {path}' for name, path in found.items()])}.",) if found else ()

    def run(self, progress: Progress = silent) -> Evaluation:
        """Runs the missing jobs, and returns the values of all rows. progress: a function called after each batch."""
        processes = self.processes
        missing = {key: self.jobs[key] for key in processes.first(lambda: list(self.missing))}
        if missing:
            processes.first(self.kept.prepare)
            own = processes.share({key: job.tokens for key, job in missing.items()})
            jobs = {key: job for key, job in missing.items() if key in own}
            processes.each(lambda: run_jobs(jobs, self.kept, device=self.device, progress=progress, remedy=self.remedy))
        for values in processes.each(lambda: {key: self.kept[key] for key in self.jobs if key in self.kept}):
            self.kept.values |= values
        rows = tuple(row.finished(self) for row in self.rows)
        notes = (*self.paths, *self.notes, *self.missing_values(rows))
        number = len(set(self.owners or range(self.number)))
        return Evaluation(self.kind, self.measures, self.lengths, number, rows, notes, self.unit)

    def missing_values(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            unknown = [at for at in self.lengths if None in [row.estimate(each, at) for each in self.measures]]
            if missing := [str(length) for length in unknown if row.fits(length)]:
                yield f"{row.checkpoint} has no values at {', '.join(missing)} tokens, because outputs are not finite."

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON: the tokens to read for each row and length, and the number of jobs."""
        rows = [
            {
                "checkpoint": row.runnable.name,
                "baseline": row.baseline,
                "tokens": {length: None if job is None else job.tokens for length, job in row.jobs.items()},
            }
            for row in self.rows
        ]
        return {
            **{name: getattr(self, name) for name in ("kind", "measures", "lengths")},
            **{UNITS[self.unit]: self.number, "notes": self.notes, "rows": rows},
            **{"jobs": len(self.jobs), "kept": len(self.jobs) - len(self.missing)},
            "tokens_to_read": sum(job.tokens for job in self.missing.values()),
        }


def run_jobs(
    missing: Mapping[str, AnyJob], results: Kept, *, device: torch.device, progress: Progress, remedy: str
) -> None:
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
                results.add(key, run_job(model, job, tick, remedy))
        del model  # frees its memory before the next model is loaded


def run_job(model: nn.Module, job: AnyJob, tick: Tick, remedy: str) -> dict[str, Any]:
    """Returns the counts of a job as plain values, with None for values that are not finite."""
    try:
        with torch.inference_mode():
            counts = job.count(model, tick)
    except PosEmbedError:
        raise
    except Exception as error:  # models raise whatever they like
        why = f"cannot be run on {job.at_once} tokens at a time ({last_line(error)})"
        raise CheckpointError(f"{job.runnable.name}: {why}; {remedy}") from error
    return {
        name: [[each if math.isfinite(each) else None for each in totals.tolist()], weights.tolist()]
        for name, (totals, weights) in counts.items()
    }


def original(runnables: Sequence[Runnable], longest: int) -> tuple[int, Runnable] | None:
    """Returns the shortest original length of the checkpoints, and the checkpoint that has it; None if none is known,
    or if it is below ``SHORTEST`` or not below the longest length, and so of no use as a baseline.

    Among checkpoints with the same original length, prefers one that was not lengthened.
    """
    known = [(runnable.old_length, runnable) for runnable in runnables if runnable.old_length is not None]
    found = min(known, key=lambda pair: (pair[0], pair[1].length or math.inf), default=None)
    return found if found and SHORTEST <= found[0] < longest else None
