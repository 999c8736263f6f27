"""Which encoding solves problems larger than those it was trained on? Its runs, and what they say together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.algorithms.problems import PROBLEMS
from posembed.lab.tasks.algorithms.spec import AlgorithmSpec
from posembed.lab.tasks.algorithms.task import Solved, check_encoding
from posembed.statistics import Estimate, estimate

SOLVED = 0.95
"""A size is solved where this share of its problems, over all seeds, is answered without a mistake."""

AlgorithmResult: TypeAlias = RunResult[AlgorithmSpec, Solved]
BySize: TypeAlias = dict[int, Estimate | None]
"""None: the encoding has no position at that size."""


def default_encodings(problem: str) -> tuple[str, ...]:
    """The usual ones, and the position ids that apply."""
    return ("learned", "sinusoidal", "rope", "alibi", *PROBLEMS[problem].ids)


def algorithm_runs(settings: AlgorithmSpec, encodings: Sequence[str], seeds: int) -> list[AlgorithmSpec]:
    """A run for every encoding and seed; all of a seed first. The encoding and seed of ``settings`` do not matter.

    Raises:
        ArgumentError: no encoding or no seed, or an encoding that is not known or does not apply.
    """
    for name in encodings:
        check_encoding(name, settings.problem)
    if not encodings or seeds < 1:
        raise ArgumentError(f"expected at least one encoding and one seed, got {list(encodings)} and {seeds}")
    return [
        dataclasses.replace(settings, encoding=name, seed=seed)
        for seed in range(seeds)
        for name in dict.fromkeys(encodings)
    ]


@dataclass(frozen=True)
class AlgorithmRow:
    """One encoding over its seeds; intervals over seeds."""

    encoding: str
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    parameters: int
    position_parameters: int
    exact_match: BySize
    token_accuracy: BySize
    solves: int | None
    """The largest size such that it and all smaller ones tested are solved; None where the smallest is not."""
    solves_by_seed: tuple[int | None, ...]
    """The same of each seed alone, in the order of ``seeds``."""


@dataclass(frozen=True)
class AlgorithmSummary:
    problem: str
    unit: str
    train_size: int
    test_sizes: tuple[int, ...]
    test_problems: int
    rows: tuple[AlgorithmRow, ...]
    """In the order of the results."""


def summarise_algorithm(results: Sequence[AlgorithmResult]) -> AlgorithmSummary:
    """One row an encoding, from runs that share all settings but encoding and seed.

    Raises:
        ArgumentError: no result at all.
    """
    if not results:
        raise ArgumentError("no run is finished yet; there is nothing to summarise")
    names = dict.fromkeys(result.spec.encoding for result in results)
    spec = results[0].spec
    return AlgorithmSummary(
        problem=spec.problem,
        unit=PROBLEMS[spec.problem].unit,
        train_size=spec.train_size,
        test_sizes=spec.test_sizes,
        test_problems=spec.test_problems,
        rows=tuple(_row([result for result in results if result.spec.encoding == name]) for name in names),
    )


def _row(results: Sequence[AlgorithmResult]) -> AlgorithmRow:
    measured = {r.spec.seed: r.measurements for r in results if r.measurements is not None}
    ours = [measured[seed] for seed in sorted(measured)]
    sizes = results[0].spec.test_sizes
    exact = {size: _over_seeds([m.exact_match[size] for m in ours]) for size in sizes}
    return AlgorithmRow(
        encoding=results[0].spec.encoding,
        seeds=tuple(sorted(measured)),
        failures=tuple(f"seed {r.spec.seed}: {r.failure}" for r in results if r.failure is not None),
        parameters=results[0].parameters,
        position_parameters=results[0].position_parameters,
        exact_match=exact,
        token_accuracy={size: _over_seeds([m.token_accuracy[size] for m in ours]) for size in sizes},
        solves=solves({size: None if of is None else of.mean for size, of in exact.items()}),
        solves_by_seed=tuple(solves(m.exact_match) for m in ours),
    )


def is_solved(share: float) -> bool:
    """Whether an exact match counts as solved; the mean of shares may miss 95% by its last bit."""
    return share > SOLVED - 1e-9


def solves(exact_match: dict[int, float | None]) -> int | None:
    """Shares by size -> the largest size solved with all smaller ones."""
    largest = None
    for size, share in sorted(exact_match.items()):
        if share is None or not is_solved(share):
            break
        largest = size
    return largest


def _over_seeds(values: Sequence[float | None]) -> Estimate | None:
    there = [value for value in values if value is not None]
    return estimate(there) if there else None
