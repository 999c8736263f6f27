"""Do different tasks learn the same position table?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed
from posembed.lab.question import Loaded, Reading, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.tasks.table_specs import ByTaskSpec, InitMeasurements
from posembed.lab.tasks.text_specs import corpus_of, with_length_counts
from posembed.statistics import Estimate, estimate, jackknife

if TYPE_CHECKING:
    from posembed.tables.compare import TableComparison

FEWEST_ROWS = 3
MEASURES = ("cka", "procrustes_distance", "shared_subspace")
"""The fields of ``posembed.tables.compare.Similarity``. The first is in the answer."""

ByMeasure: TypeAlias = dict[str, Estimate | None]
"""Estimates by measure. None means that there are too few tables. Intervals are over seeds (``jackknife``)."""
Run: TypeAlias = tuple[str, int]
"""A task and a seed."""
Pairs: TypeAlias = Callable[[Sequence[int]], Sequence[tuple[Run, Run]]]
"""Maps seeds to pairs of runs."""


@dataclass(frozen=True, kw_only=True)
class TaskRow(Row):
    """The results of one task."""

    loss: Estimate | None
    """The loss on held-out text, in nats per predicted token. Losses of different tasks cannot be compared."""
    two_seeds: ByMeasure
    """The similarity of the tables of two seeds: the ceiling for the similarity to other tasks."""
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


@dataclass(frozen=True, kw_only=True)
class ByTaskSummary(Summary):
    rows: tuple[TaskRow, ...]
    pairs: tuple[TwoTasks, ...]
    length: int
    """The number of rows of each table."""
    width: int
    init: str
    """The name of the initial values."""


class ByTask(TrainedQuestion[ByTaskSpec, InitMeasurements, ByTaskSummary]):
    name = "by-task"
    page = "by_task"
    asks = "Do different tasks learn the same position table?"
    Spec = ByTaskSpec
    ReadingType = Reading
    usual = ("causal", "masked")
    usual_seeds = 3
    names_help = (
        "Tasks to compare, separated by commas: causal (predict the next token), backward (the previous token), masked "
        "(hidden tokens, as BERT does), replaced (which tokens are random)."
    )
    presets = presets_of("inits", "by-task")
    preset = "tiny"
    presets_help = "tiny (two minutes on two cores) or bert (a GPU)."

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.objectives import objective_by_name

        objective_by_name(name)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.language import InitialValues, initial_table

        initial_table(chosen["init"], 1, 2)
        if chosen["train_length"] < FEWEST_ROWS:
            raise ArgumentError(
                f"train_length must be at least {FEWEST_ROWS}, because tables of fewer rows cannot be compared; got "
                f"{chosen['train_length']}"
            )
        with_length_counts(chosen)
        corpus = corpus_of(chosen)
        return InitialValues(corpus), {"data_sha256": corpus.sha256}

    def summary(self, runs: Sequence[BySeed[InitMeasurements]], spec: ByTaskSpec, reading: Reading) -> ByTaskSummary:
        found, names = Similarities(runs), [each.row["name"] for each in runs]
        return ByTaskSummary(
            rows=tuple(
                TaskRow(
                    **each.row,
                    loss=each.mean(lambda m: m.loss),
                    two_seeds=found.mean(found.seeds(name), within(name)),
                    random_order=found.mean(found.seeds(name), within(name), floor=True),
                    without_table=tuple(sorted(each.measured.keys() - set(found.seeds(name)))),
                )
                for name, each in zip(names, runs, strict=True)
            ),
            pairs=tuple(found.of_two(a, b) for a, b in combinations(names, 2)),
            length=spec.train_length,
            width=spec.width,
            init=spec.init,
        )


class Similarities:
    """The similarities of all pairs of trained tables, one table per task and seed."""

    def __init__(self, runs: Sequence[BySeed[InitMeasurements]]) -> None:
        from posembed.tables.compare import compare_tables

        self.tables = {(each.row["name"], seed): rows for each in runs for seed, rows in each.tables().items()}
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
            return found and dataclasses.replace(found, values=self.values(pairs(seeds), measure, floor=floor))

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
            return estimate(found) if found else None

        return TwoTasks(
            tasks=(a, b),
            similarity=self.mean(shared, between(a, b)),
            ceiling={name: jackknife(shared, partial(ceiling, measure=name)) for name in MEASURES},
            difference={name: jackknife(shared, partial(difference, measure=name)) for name in MEASURES},
            random_order=self.mean(shared, between(a, b), floor=True),
            same_seed={name: same_seed(name) for name in MEASURES},
        )


def within(task: str) -> Pairs:
    """Returns the pairs of different seeds of a task."""
    return lambda seeds: [((task, i), (task, j)) for i, j in combinations(seeds, 2)]


def between(a: str, b: str) -> Pairs:
    """Returns the pairs of two tasks and different seeds. Tables of the same seed share their initial values."""
    return lambda seeds: [((a, i), (b, j)) for i, j in permutations(seeds, 2)]


def mean_or_none(values: Sequence[Any]) -> float | None:
    return math.fsum(values) / len(values) if values else None
