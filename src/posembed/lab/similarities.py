"""How similar the trained tables of runs are, by task and seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, TypeAlias

from posembed.lab.found import Found
from posembed.statistics import Estimate, estimate, jackknife

if TYPE_CHECKING:
    from torch import Tensor

    from posembed.tables.compare import TableComparison

MEASURES = ("cka", "procrustes_distance", "shared_subspace")
"""The fields of ``posembed.tables.compare.Similarity``. The first is in the answer."""

ByMeasure: TypeAlias = dict[str, Estimate | None]
"""Estimates by measure. None means that there are too few tables. Intervals are over seeds (``jackknife``)."""
Run: TypeAlias = tuple[str, int]
"""A task and a seed."""
Pairs: TypeAlias = Callable[[Sequence[int]], Sequence[tuple[Run, Run]]]
"""Maps seeds to pairs of runs."""


@dataclass(frozen=True, kw_only=True)
class OneTask:
    """The similarity of the tables of two seeds of a task."""

    name: str
    two_seeds: ByMeasure
    """The ceiling for the similarity to other tasks."""
    random_order: ByMeasure
    """The same with one table's rows in random order: the floor."""
    without_table: tuple[int, ...]
    """The seeds whose runs succeeded, but whose trained tables are not in the run folder. No similarity counts them."""


@dataclass(frozen=True, kw_only=True)
class TwoTasks:
    """The similarity of the tables of two tasks, over the seeds with tables of both."""

    tasks: tuple[str, str]
    similarity: ByMeasure
    """The similarity of two tables of different seeds, one per task."""
    ceiling: ByMeasure
    """The similarity of two tables of different seeds and the same task: the mean of both tasks."""
    difference: ByMeasure
    """``similarity`` minus ``ceiling``."""
    random_order: ByMeasure
    """The same as ``similarity``, with one table's rows in random order."""
    same_seed: ByMeasure
    """The similarity of two tables of the same seed, one per task: they had the same initial values and text."""


@dataclass(frozen=True)
class TableSimilarities:
    """How similar the tables of all tasks are."""

    tasks: tuple[OneTask, ...]
    pairs: tuple[TwoTasks, ...]

    @classmethod
    def of(cls, found: Found) -> TableSimilarities:
        """Compares the trained tables (N, D) in the run folder. Raises RunFolderError for a damaged file."""
        similarities = Similarities(tables_of(found))

        def one(name: str) -> OneTask:
            seeds = similarities.seeds(name)
            two_seeds, floor = (similarities.mean(seeds, within(name), floor=floor) for floor in (False, True))
            lost = tuple(sorted({*found.row(name).seeds} - set(seeds)))
            return OneTask(name=name, two_seeds=two_seeds, random_order=floor, without_table=lost)

        return cls(
            tuple(map(one, found.names)), tuple(similarities.of_two(*two) for two in combinations(found.names, 2))
        )


def tables_of(found: Found) -> dict[Run, Tensor]:
    """Returns the trained tables of successful runs that are in the run folder, by task and seed."""
    from posembed.lab.runs.tensors import load_tables

    known = {}
    for name in found.names:
        for spec in sorted(
            (each.spec for each in found.results if each.measurements is not None), key=lambda spec: spec.seed
        ):
            file = None if found.folder is None else found.folder.file("tables", spec)
            if spec.compared == name and file is not None and file.exists():
                known[name, spec.seed] = load_tables(file, spec.steps)[spec.steps]
    return known


class Similarities:
    """The similarities of all pairs of trained tables, one table per task and seed."""

    def __init__(self, tables: Mapping[Run, Tensor]) -> None:
        from posembed.tables.compare import compare_tables

        self.tables = tables
        self.known: dict[tuple[Run, Run], TableComparison] = {}
        for a, b in combinations(self.tables, 2):
            self.known[a, b] = self.known[b, a] = compare_tables(self.tables[a], self.tables[b])

    def seeds(self, *tasks: str) -> list[int]:
        """Returns the seeds with tables of all these tasks. A seed without one would narrow a jackknife's interval, as
        leaving it out changes nothing."""
        return sorted(set.intersection(*({seed for name, seed in self.tables if name == task} for task in tasks)))

    def values(self, pairs: Iterable[tuple[Run, Run]], measure: str, *, floor: bool = False) -> tuple[float, ...]:
        """Returns one measure of each pair whose tables are known; with ``floor``, for rows in random order."""
        found = [self.known[pair] for pair in pairs if pair in self.known]
        return tuple(getattr(each.floor if floor else each, measure) for each in found)

    def mean(self, seeds: Sequence[int], pairs: Pairs, *, floor: bool = False) -> ByMeasure:
        """Estimates the mean similarity of the pairs that ``pairs`` makes of the seeds."""

        def of(measure: str) -> Estimate | None:
            found = jackknife(seeds, lambda some: mean_or_none(self.values(pairs(some), measure, floor=floor)))
            return found and dataclasses.replace(
                within_unit(found), values=self.values(pairs(seeds), measure, floor=floor)
            )

        return {measure: of(measure) for measure in MEASURES}

    def of_two(self, a: str, b: str) -> TwoTasks:
        shared = self.seeds(a, b)

        def ceiling(seeds: Sequence[int], measure: str) -> float | None:
            each = [mean_or_none(self.values(within(task)(seeds), measure)) for task in (a, b)]
            return None if None in each else mean_or_none(each)

        def difference(seeds: Sequence[int], measure: str) -> float | None:
            highest, found = ceiling(seeds, measure), mean_or_none(self.values(between(a, b)(seeds), measure))
            return None if highest is None or found is None else found - highest

        def same_seed(measure: str) -> Estimate | None:
            found = self.values((((a, seed), (b, seed)) for seed in shared), measure)
            return within_unit(estimate(found)) if found else None

        return TwoTasks(
            tasks=(a, b),
            similarity=self.mean(shared, between(a, b)),
            ceiling={name: within_unit(jackknife(shared, partial(ceiling, measure=name))) for name in MEASURES},
            difference={name: jackknife(shared, partial(difference, measure=name)) for name in MEASURES},
            random_order=self.mean(shared, between(a, b), floor=True),
            same_seed={name: same_seed(name) for name in MEASURES},
        )


def within_unit(found: Any) -> Any:
    """Limits the interval of a similarity to 0 and 1."""
    if found is None or found.low is None:
        return found
    return dataclasses.replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def within(task: str) -> Pairs:
    """Returns the pairs of different seeds of a task."""
    return lambda seeds: [((task, i), (task, j)) for i, j in combinations(seeds, 2)]


def between(a: str, b: str) -> Pairs:
    """Returns the pairs of two tasks and different seeds. Tables of the same seed share their initial values."""
    return lambda seeds: [((a, i), (b, j)) for i, j in permutations(seeds, 2)]


def mean_or_none(values: Sequence[Any]) -> float | None:
    return math.fsum(values) / len(values) if values else None
