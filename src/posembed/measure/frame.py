"""The table of everything that was measured: one row per value, whichever command measured it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas

COLUMNS = ("run", "seed", "item", "metric", "x", "value", "weight")
ONLY = ""
"""The item of a value that belongs to the whole run."""


class Value(NamedTuple):
    """One measured value.

    metric: the name of a ``Metric``. x: the length, size or amount at which it was measured; None without one. value:
    None means that the encoding has no position there. item: the held-out document, text or image that it belongs to.
    weight: how many examples the value is a sum over; a run's value is the sum of values divided by the sum of weights.
    """

    metric: str
    value: float | None
    x: int | None = None
    item: int | str = ONLY
    weight: float = 1.0


@dataclass(frozen=True)
class Run:
    """The values of a name with one seed. name: what is compared, such as an encoding."""

    name: str
    seed: int
    values: tuple[Value, ...]

    @cached_property
    def found(self) -> dict[tuple[str, int | None], list[Value]]:
        """The values by metric and x."""
        known: dict[tuple[str, int | None], list[Value]] = {}
        for each in self.values:
            known.setdefault((each.metric, each.x), []).append(each)
        return known

    def value(self, metric: str, x: int | None = None) -> float | None:
        """Returns the value over all items; None if it is not known."""
        parts = self.found.get((metric, x), [])
        if not parts or any(part.value is None for part in parts):
            return None
        return sum(part.value or 0.0 for part in parts) / sum(part.weight for part in parts)


@dataclass(frozen=True)
class Frame:
    """The values of all successful runs."""

    runs: tuple[Run, ...] = field(default=())

    @classmethod
    def of(cls, results: Iterable[Any], more: Callable[[Any], Iterable[Value]] = lambda result: ()) -> Frame:
        """Returns the values of the lab's results: objects with a ``spec``, and with ``measurements`` or None. Runs
        that differ in a second setting, such as the amount of training text, measure at different x. ``more``: returns
        more values of a result."""
        known: dict[tuple[str, int], list[Value]] = {}
        for each in results:
            if each.measurements is not None:
                known.setdefault((each.spec.compared, each.spec.seed), []).extend(
                    (*each.measurements.values, *more(each))
                )
        return cls(tuple(Run(name, seed, tuple(values)) for (name, seed), values in known.items()))

    def of_name(self, name: str) -> dict[int, Run]:
        """Returns the runs of a name, by seed."""
        return {each.seed: each for each in sorted(self.runs, key=lambda run: run.seed) if each.name == name}

    def xs(self, metric: str) -> tuple[Any, ...]:
        """Returns the x at which a metric was measured, in ascending order."""
        return tuple(
            sorted({x for run in self.runs for known, x in run.found if known == metric}, key=lambda x: x or 0)
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a tidy frame with the columns of ``COLUMNS``. NaN means that the encoding has no position there."""
        import pandas  # it takes a second

        rows: Sequence[Mapping[str, Any]] = [
            {"run": run.name, "seed": run.seed, **value._asdict()} for run in self.runs for value in run.values
        ]
        return pandas.DataFrame(rows, columns=list(COLUMNS))
