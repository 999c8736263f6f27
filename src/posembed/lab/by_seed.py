"""Groups runs by compared name, such as an encoding. Computes means over seeds, and differences paired by seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import MeasuredT
from posembed.statistics import Estimate, estimate, paired_difference, shares

if TYPE_CHECKING:
    from torch import Tensor

FEWEST_ALIKE = 6
"""The minimum number of documents or seeds for an interval if all their differences are equal. By chance, n signs are
equal with probability 2^(1 - n), which is below 5% from n = 6 on."""


class BySeed(Generic[MeasuredT]):
    """The runs of one compared name. ``measured`` maps seeds to the measurements of successful runs. If the runs
    vary in a second field, ``at`` selects those at one of its values, so that each seed has one run.

    reference: the runs to compare with; None for the reference itself, or if there is no reference.
    folder: the run folder, which has the tables of the runs; None if it is unknown.
    """

    def __init__(self, results: Sequence[RunResult[Any, MeasuredT]], folder: RunFolder[Any] | None = None) -> None:
        self.results, self.folder = results, folder
        self.reference: BySeed[MeasuredT] | None = None
        by_seed = sorted(results, key=lambda result: result.spec.seed)
        self.measured = {r.spec.seed: r.measurements for r in by_seed if r.measurements is not None}

    @property
    def row(self) -> dict[str, Any]:
        """The values of the fields of ``Row``, by name."""
        first = self.results[0]
        return {
            "name": first.spec.compared,
            "seeds": tuple(self.measured),
            "failures": tuple(f"{r.spec.case}: {r.failure}" for r in self.results if r.failure is not None),
            "parameters": first.parameters,
            "position_parameters": first.position_parameters,
        }

    def at(self, value: str) -> BySeed[MeasuredT]:
        """Returns the runs at one value of the spec's ``VARIED`` field, with the reference's runs at the same value."""
        runs = BySeed[MeasuredT]([result for result in self.results if result.spec.varied == value], self.folder)
        runs.reference = None if self.reference is None else self.reference.at(value)
        return runs

    def tables(self) -> dict[int, Tensor]:
        """Returns the trained table (N, D) of each successful run, in float32, by seed, if it is in the folder. Raises
        RunFolderError for a damaged file."""
        from posembed.lab.runs.tensors import load_tables

        specs = {result.spec.seed: result.spec for result in self.results if result.measurements is not None}
        files = {} if self.folder is None else {seed: self.folder.file("tables", specs[seed]) for seed in sorted(specs)}
        return {
            seed: load_tables(file, specs[seed].steps)[specs[seed].steps]
            for seed, file in files.items()
            if file.exists()
        }

    def values(self, read: Callable[[MeasuredT], float | None]) -> dict[int, float]:
        """Returns ``read(measurements)`` by seed. Leaves out seeds for which it returns None."""
        found = {seed: read(measurements) for seed, measurements in self.measured.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, read: Callable[[MeasuredT], float | None]) -> Estimate | None:
        values = self.values(read)
        return estimate(list(values.values())) if values else None

    def means(
        self, read: Callable[[MeasuredT], Mapping[int, float | None]], keys: Iterable[int]
    ) -> dict[int, Estimate | None]:
        """Returns, for each key, the mean over seeds of the key's value in the mapping that ``read`` returns."""
        return {key: self.mean(lambda m, key=key: read(m)[key]) for key in keys}  # type: ignore[misc]

    def less(
        self,
        other: BySeed[MeasuredT] | None,
        read: Callable[[MeasuredT], float | None],
        read_other: Callable[[MeasuredT], float | None] | None = None,
    ) -> Estimate | None:
        """Estimates this name's value minus the value of ``other``, paired by seed; None if they share no seed.

        ``read_other`` reads the value of ``other``. Default: ``read``.
        """
        return None if other is None else paired_difference(self.values(read), other.values(read_other or read))


def by_name(
    results: Sequence[RunResult[Any, MeasuredT]], reference: str | None, folder: RunFolder[Any] | None = None
) -> list[BySeed[MeasuredT]]:
    """Groups results by compared name, in order of first appearance. ``reference``: the name of the reference."""
    names = dict.fromkeys(result.spec.compared for result in results)
    groups = {name: BySeed([r for r in results if r.spec.compared == name], folder) for name in names}
    for name, runs in groups.items():
        runs.reference = None if reference is None or name == reference else groups[reference]
    return list(groups.values())


@dataclass(frozen=True)
class Correct:
    """The numbers of correct answers and of examples in each held-out document, for one run.

    For an F1 score, ``right`` counts correct answers twice, and ``examples`` counts the given and the correct answers.
    """

    right: tuple[float, ...]
    examples: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / sum(self.examples)


@dataclass(frozen=True)
class Difference:
    """An accuracy minus the reference's accuracy, on the same seeds and held-out examples, as a share (not percent)."""

    over_seeds: Estimate
    """The mean difference, paired by seed. Its interval reflects the variation between seeds."""
    over_documents: Estimate
    """The same mean. Its interval reflects the variation between documents. ``values`` is empty."""

    @property
    def significant(self) -> bool:
        """Whether both intervals are known and exclude 0."""
        return {self.over_seeds.side_of(0), self.over_documents.side_of(0)} <= {"below", "above"}


def accuracy_difference(runs: BySeed[MeasuredT], read: Callable[[MeasuredT], Correct]) -> Difference | None:
    """Returns the difference in accuracy from the reference, over the seeds that both have. Returns None if they share
    no seed, or if there is no reference."""
    ours, theirs = runs, runs.reference
    over_seeds = ours.less(theirs, lambda measured: read(measured).accuracy)
    if over_seeds is None or theirs is None:
        return None
    shared = sorted(ours.measured.keys() & theirs.measured.keys())
    a, b = ({seed: read(side.measured[seed]) for seed in shared} for side in (ours, theirs))
    examples = a[shared[0]].examples
    if all(side[seed].examples == examples for side in (a, b) for seed in shared):
        gained = [
            math.fsum(a[seed].right[i] - b[seed].right[i] for seed in shared) / len(shared)
            for i in range(len(examples))
        ]
        by_document = shares(gained, examples)
    else:  # in F1 scores, the number of given answers differs between runs
        ours_and_theirs = [[shares(each[seed].right, each[seed].examples) for seed in shared] for each in (a, b)]
        by_document = tuple(
            math.fsum(x[i] - y[i] for x, y in zip(*ours_and_theirs, strict=True)) / len(shared)
            for i in range(len(examples))
        )
    over_documents = dataclasses.replace(estimate(by_document), values=())
    if over_documents.low == over_documents.high and len(examples) < FEWEST_ALIKE:
        over_documents = dataclasses.replace(over_documents, low=None, high=None)
    return Difference(over_seeds, over_documents)
