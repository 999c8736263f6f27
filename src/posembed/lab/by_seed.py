"""Groups runs by compared name, such as an encoding. Computes means over seeds, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import MeasuredT
from posembed.statistics import Estimate, estimate, paired_difference

if TYPE_CHECKING:
    from torch import Tensor


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
