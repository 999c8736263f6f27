"""How similar the trained tables of runs are, by task and seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import TYPE_CHECKING, TypeAlias

from posembed.lab.found import Found
from posembed.statistics import Estimate, estimate, jackknife

if TYPE_CHECKING:
    from torch import Tensor

MEASURES = ("cka", "procrustes_distance", "shared_subspace")
"""The fields of ``posembed.tables.compare.Similarity``. The first is in the answer."""
Run: TypeAlias = tuple[str, int]
"""A task and a seed."""


@dataclass(frozen=True, kw_only=True)
class Similar:
    """The similarity of the tables of one task, or of two tasks, over the seeds for which all these tables exist. None
    means too few tables, or a value that needs two tasks. Intervals are over seeds (``jackknife``)."""

    tasks: tuple[str, ...]
    measure: str
    similarity: Estimate | None
    """The mean over pairs of tables with different seeds, both of the one task, or one of each task."""
    random_order: Estimate | None
    """The same, with the rows of one table in random order: a floor for ``similarity``."""
    ceiling: Estimate | None
    """The mean over pairs of tables with different seeds and the same task, averaged over both tasks."""
    difference: Estimate | None
    """``similarity`` minus ``ceiling``."""
    same_seed: Estimate | None
    """The mean over pairs of tables with the same seed, one of each task: both had the same initial values and text."""

    @property
    def name(self) -> str:
        return " and ".join(self.tasks) if len(self.tasks) > 1 else f"{self.tasks[0]}, two seeds"

    @property
    def different(self) -> str:
        """Whether the tables of two tasks differ more than those of two seeds: "yes", "no", "more alike" (for a
        difference in the other direction), or "unknown" without an interval."""
        side = None if self.difference is None else self.difference.side_of(0)
        further = "above" if self.measure == "procrustes_distance" else "below"
        return "unknown" if side is None else "no" if side == "both" else "yes" if side == further else "more alike"


@dataclass(frozen=True)
class Similarities:
    """How similar the tables are, by each measure: within each task, then between each two tasks. without_table: by
    task, the seeds of successful runs whose trained tables are not in the run folder and do not count."""

    rows: tuple[Similar, ...]
    without_table: dict[str, tuple[int, ...]]

    def by(self, measure: str, *, tasks: int = 0) -> list[Similar]:
        """Returns the similarities by one measure. tasks: 1 means within a task, 2 between two, 0 all."""
        return [row for row in self.rows if row.measure == measure and tasks in (0, len(row.tasks))]


def similarities_of(found: Found) -> Similarities:
    """Compares the trained tables (N, D) in the run folder. Raises RunFolderError for a damaged file."""
    from posembed.tables.compare import compare_tables

    tables = tables_of(found)
    known = {frozenset(pair): compare_tables(*(tables[run] for run in pair)) for pair in combinations(tables, 2)}

    def similar(tasks: tuple[str, ...], measure: str) -> Similar:
        # A seed without one of the tables would narrow a jackknife's interval, as leaving it out changes nothing.
        seeds = sorted(set.intersection(*({seed for name, seed in tables if name == task} for task in tasks)))

        def value(one: Run, other: Run, floor: bool = False) -> float:
            found = known[frozenset((one, other))]
            return getattr(found.floor if floor else found, measure)

        def of(some: Sequence[int], a: str, b: str, floor: bool = False) -> tuple[float, ...]:
            """Returns the values of pairs of different seeds: tables of one seed share their initial values."""
            two = combinations(some, 2) if a == b else permutations(some, 2)
            return tuple(value((a, i), (b, j), floor) for i, j in two)

        def mean_of(floor: bool) -> Estimate | None:
            mean = jackknife(seeds, lambda some: mean_or_none(of(some, tasks[0], tasks[-1], floor)))
            return mean and dataclasses.replace(mean.within(0.0, 1.0), values=of(seeds, tasks[0], tasks[-1], floor))

        def ceiling(some: Sequence[int]) -> float | None:
            each = [mean for task in tasks if (mean := mean_or_none(of(some, task, task))) is not None]
            return mean_or_none(each) if len(each) == len(tasks) else None

        def difference(some: Sequence[int]) -> float | None:
            highest, mean = ceiling(some), mean_or_none(of(some, tasks[0], tasks[-1]))
            return None if highest is None or mean is None else mean - highest

        def of_two(statistic: Callable[[Sequence[int]], float | None]) -> Estimate | None:
            return jackknife(seeds, statistic) if len(tasks) > 1 else None

        highest = of_two(ceiling)
        same = [value((tasks[0], seed), (tasks[1], seed)) for seed in seeds] if len(tasks) > 1 else []
        return Similar(
            tasks=tasks,
            measure=measure,
            similarity=mean_of(floor=False),
            random_order=mean_of(floor=True),
            ceiling=highest and highest.within(0.0, 1.0),
            difference=of_two(difference),
            same_seed=estimate(same).within(0.0, 1.0) if same else None,
        )

    every = [*((name,) for name in found.names), *combinations(found.names, 2)]
    lost = {name: tuple(seed for seed in found.row(name).seeds if (name, seed) not in tables) for name in found.names}
    return Similarities(tuple(similar(tasks, measure) for tasks in every for measure in MEASURES), lost)


def tables_of(found: Found) -> dict[Run, Tensor]:
    """Returns the trained tables of successful runs that are in the run folder, by task and seed."""
    from posembed.lab.runs.tensors import load_tables

    known = {}
    for spec in (each.spec for each in found.results if each.measurements is not None and found.folder is not None):
        assert found.folder is not None
        if (file := found.folder.file("tables", spec)).exists():
            known[spec.compared, spec.seed] = load_tables(file, spec.steps)[spec.steps]
    return dict(sorted(known.items(), key=lambda item: (found.names.index(item[0][0]), item[0][1])))


def mean_or_none(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
