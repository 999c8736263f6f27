"""Results of compare by-task as runs would give them, made up, with tables that share more or less."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import posembed
from made_up_runs import kin, made_up, save
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.tensors import snapshot_steps
from posembed.lab.tasks.language import measured_table
from posembed.lab.tasks.text_specs import ByTaskSpec

TYPICAL = {"causal": 1.9, "masked": 2.3, "replaced": 0.4}
LENGTH, WIDTH, STEPS = 32, 16, 700


def table_of(task: str, seed: int) -> Tensor:
    """Sinusoids for causal and replaced, smooth noise for masked; each turned and with some noise of its seed."""
    generator = torch.Generator().manual_seed(10 * seed + len(task))
    shared = posembed.tables.sinusoidal_table(LENGTH, WIDTH)
    if task == "masked":
        shared = torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(7)).cumsum(dim=0) / 4
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))[0]
    return shared @ turn + 0.1 * torch.randn(LENGTH, WIDTH, generator=generator)


def by_task_run(task: str, seed: int = 0, *, failure: str | None = None, **settings: object) -> RunResult:
    settings = {"train_length": LENGTH, "width": WIDTH, "steps": STEPS, "init": "normal-0.02"} | settings
    loss, table = TYPICAL.get(task, 1.5) + 0.01 * seed, table_of(task, seed)
    return made_up(
        kin(ByTaskSpec, "by-task", seed, settings, task=task),
        position_parameters=table.numel(),
        losses=tuple((step, loss + 2 / step) for step in range(7, STEPS + 1, 7)),
        measured=measured_table(0.1 * table, table, loss=loss),
        failure=failure,
    )


def by_task_runs(seeds: int = 1) -> list[RunResult]:
    return [by_task_run(task, seed) for seed in range(seeds) for task in TYPICAL]


def tables_of(result: RunResult) -> dict[int, Tensor]:
    rows = table_of(result.spec.task, result.spec.seed)
    return {0: 0.1 * rows, **{step: rows * step / STEPS for step in snapshot_steps(STEPS)}, STEPS: rows}


save_by_task = partial(save, tables=tables_of)
