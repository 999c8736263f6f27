"""Running what has to be measured: each checkpoint is loaded once, and only if a figure of it is missing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posembed.checkpoints.rebuild import first_line
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.plan import PlannedRow, Task
from posembed.evaluation.results_file import Counted, Kept
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.sentences import PLACES, encoder, retrieval_ranks
from posembed.evaluation.texts import Sample
from posembed.evaluation.tokens import Tick, causal_counts, masked_counts

Progress = Callable[[str, int, int], None]
"""Told which checkpoint runs, how many tokens are done, and how many there are."""

VERSION_OF_FIGURES = 2
"""Increase this whenever the same question gives another figure, so that kept figures and new ones never mix."""


@dataclass(frozen=True)
class Settings:
    """What a figure hangs on beside checkpoint, sample and task.

    last: of each text, how many tokens the second perplexity is over. passage: tokens of a query. seed: of masks.
    """

    last: int
    passage: int
    seed: int


def key_of(runnable: Runnable, sample: Sample, task: Task, settings: Settings) -> str:
    """A name for a figure that no other figure has."""
    own = {"causal": settings.last, "masked": settings.seed, "sentences": settings.passage}[runnable.kind]
    parts = [VERSION_OF_FIGURES, runnable.sha256, sample.sha256, own, task]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def run_missing(
    plan: Sequence[PlannedRow],
    samples: Mapping[str, Sample],
    settings: Settings,
    kept: Kept,
    *,
    device: torch.device,
    progress: Progress,
) -> None:
    """Measure every task of the plan whose figures are not kept, and keep them one by one."""
    missing: dict[str, tuple[Runnable, Task]] = {}
    for row in plan:
        for task in row.tasks.values():
            if task is not None:
                key = key_of(row.runnable, samples[row.runnable.name], task, settings)
                if key not in kept:
                    missing.setdefault(key, (row.runnable, task))
    total = sum(tokens_of(runnable, samples[runnable.name], task, settings) for runnable, task in missing.values())
    done = 0
    # A checkpoint's baselines stand after all checkpoints: brought together, each is loaded once.
    for runnable in dict.fromkeys(runnable for runnable, _ in missing.values()):
        model = runnable.model(device)

        def tick(tokens: int, name: str = runnable.name) -> None:
            nonlocal done
            done += tokens
            progress(name, done, total)

        for key, (other, task) in missing.items():
            if other is runnable:
                values = measured(runnable, model, samples[runnable.name], task, settings, tick)
                kept.add(key, values, checkpoint=runnable.name, **task._asdict())
        del model  # before the next one is loaded


def measured(
    runnable: Runnable, model: nn.Module, sample: Sample, task: Task, settings: Settings, tick: Tick
) -> Counted:
    """What one task counts in each text, None where that is not finite."""
    try:
        with torch.inference_mode():
            counted = counts(runnable, model, sample, task, settings, tick)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"{runnable.name}: cannot be run on {task.piece} tokens at a time ({first_line(error)})"
        ) from error
    return {
        name: [number if math.isfinite(number) else None for number in numbers.tolist()]
        for name, numbers in counted.items()
    }


def counts(
    runnable: Runnable, model: nn.Module, sample: Sample, task: Task, settings: Settings, tick: Tick
) -> dict[str, Tensor]:
    if runnable.kind == "causal":
        return causal_counts(model, sample, length=task.piece, last=settings.last, tick=tick)
    if runnable.kind == "masked":
        return masked_counts(model, sample, length=task.piece, seed=settings.seed, tick=tick)
    assert runnable.pooling is not None
    return retrieval_ranks(
        encoder(model, sample, runnable.pooling, tick=tick),
        sample.ids[:, : task.length - sample.specials],
        piece=task.piece - sample.specials,
        passage=settings.passage,
        cut=task.cut,
    )


def tokens_of(runnable: Runnable, sample: Sample, task: Task, settings: Settings) -> int:
    """How many tokens a task feeds to the model, special ones left out."""
    if runnable.kind != "sentences":
        return sample.ids.numel()
    embedded = (task.piece if task.cut else task.length) - sample.specials
    return len(sample.ids) * (embedded + len(PLACES) * settings.passage)


def device_named(name: str | None) -> torch.device:
    """A device by its name, or the machine's accelerator, or its CPU.

    Raises:
        ArgumentError: no such device.
    """
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(
            f"device {name!r} cannot be used here ({first_line(error)}); leave it out, or say cpu"
        ) from error
