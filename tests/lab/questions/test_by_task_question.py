"""Do different tasks learn the same table: similarity between tasks, between seeds, and in random order."""

from __future__ import annotations

import dataclasses
from itertools import combinations, permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

import posembed
from asked import shared
from made_up_by_task import TYPICAL, by_task_run, by_task_runs, save_by_task, table_of
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder
from posembed.lab.runs.tensors import save_tables
from posembed.lab.similarities import MEASURES, Similarities
from posembed.lab.tasks.text_specs import LOSS
from posembed.statistics import Estimate
from tolerance import assert_close

QUESTION = QUESTIONS["by-task"]


def summary_of(folder: RunFolder) -> Similarities:
    return QUESTION.summarise(sorted(folder.results(), key=lambda r: r.spec.seed), folder=folder).special


def saved(path: Path, tables: dict[tuple[str, int], Tensor]) -> RunFolder:
    """A folder of runs with exactly these trained tables."""
    results = [by_task_run(*run) for run in tables]
    folder = save_by_task(path, results)
    for result in results:
        rows = tables[result.spec.task, result.spec.seed]
        save_tables(folder.file("tables", result.spec), {0: rows.clone(), result.spec.steps: rows})
    return folder


def known(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


def test_the_means_are_over_pairs_of_different_seeds(tmp_path: Path) -> None:
    summary = summary_of(save_by_task(tmp_path, by_task_runs(3)))
    tables = {(task, seed): table_of(task, seed).float() for task in TYPICAL for seed in range(3)}

    found = {(a, b): posembed.tables.compare_tables(tables[a], tables[b]) for a, b in combinations(tables, 2)}

    def mean(pairs: list, measure: str) -> float:
        values = [getattr(found.get((a, b)) or found[b, a], measure) for a, b in pairs]
        return sum(values) / len(values)

    same = {
        (task, name): mean([((task, i), (task, j)) for i, j in combinations(range(3), 2)], name)
        for task in TYPICAL
        for name in MEASURES
    }
    every = [*((task,) for task in TYPICAL), *combinations(TYPICAL, 2)]
    assert [(row.tasks, row.measure) for row in summary.rows] == [(tasks, name) for tasks in every for name in MEASURES]
    for row in summary.rows:
        a, b, name = row.tasks[0], row.tasks[-1], row.measure
        if a == b:
            assert_close(known(row.similarity).value, same[a, name], scale=1)
            assert len(known(row.similarity).values) == 3
            continue
        between = mean([((a, i), (b, j)) for i, j in permutations(range(3), 2)], name)
        assert_close(known(row.similarity).value, between, scale=1)
        assert_close(known(row.difference).value, between - (same[a, name] + same[b, name]) / 2, scale=1)
        assert_close(known(row.same_seed).value, mean([((a, i), (b, i)) for i in range(3)], name), scale=1)


def test_tables_that_are_equal_up_to_rotation_are_no_more_different_between_tasks(tmp_path: Path) -> None:
    table = posembed.tables.sinusoidal_table(32, 16)

    def turned() -> Tensor:
        return table @ torch.linalg.qr(torch.randn(16, 16))[0]

    summary = summary_of(
        saved(tmp_path, {(task, seed): turned() for seed in range(3) for task in ("causal", "masked")})
    )
    (pair,) = summary.by("cka", tasks=2)
    assert_close(known(pair.similarity).value, 1, dtype=torch.float32)
    assert_close(known(pair.difference).value, 0, dtype=torch.float32, scale=1)
    assert known(pair.random_order).value < 0.5


def test_runs_that_failed_or_lost_their_tables_are_left_out(tmp_path: Path) -> None:
    results = [*by_task_runs(3)[:-1], by_task_run("replaced", 2, failure="the loss was nan at step 3 of 700")]
    folder = save_by_task(tmp_path, results)
    folder.file("tables", results[0].spec).unlink()
    summary = summary_of(folder)
    assert [len(known(row.similarity).values) for row in summary.by("cka", tasks=1)] == [1, 3, 1]
    assert list(summary.without_table.values()) == [(0,), (), ()]
    damaged = folder.file("tables", results[1].spec)
    damaged.write_bytes(b"half a file")
    with pytest.raises(RunFolderError, match="cannot be read"):
        summary_of(folder)
    without = QUESTION.summarise(results)
    assert all(row.similarity is None for row in without.special.rows)
    assert all(without.mean(LOSS, name) is not None for name in without.names)
    assert list(without.special.without_table.values()) == [row.seeds for row in without.rows]


@pytest.mark.parametrize("others", [4, 6])
def test_seeds_that_only_other_tasks_have_narrow_no_interval(others: int, tmp_path: Path) -> None:
    masked = {("masked", seed): table_of("masked", seed) for seed in range(3)}
    causal = {("causal", seed): table_of("causal", seed) for seed in range(others)}
    alone, fewer, more = (
        summary_of(saved(tmp_path / name, tables))
        for name, tables in {
            "alone": masked,
            "fewer": masked | dict(list(causal.items())[:3]),
            "more": masked | causal,
        }.items()
    )
    by_name = {row.name: row for row in more.by("cka")}
    assert by_name["masked, two seeds"] == alone.by("cka")[0]
    assert len(known(by_name["causal, two seeds"].similarity).values) == others * (others - 1) // 2
    (pair,), (wanted,) = more.by("cka", tasks=2), fewer.by("cka", tasks=2)
    assert dataclasses.replace(pair, tasks=()) == dataclasses.replace(wanted, tasks=())


def test_settings_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text to learn from\n" * 100, encoding="utf-8")
    with pytest.raises(ArgumentError, match="train_length must be at least 3, because tables of fewer rows"):
        shared("by-task", data=str(text), train_length=2)
    with pytest.raises(ArgumentError, match="unknown initial values 'ones'"):
        shared("by-task", data=str(text), init="ones")
    assert shared("by-task", data=str(text)).init == "normal-0.02"
