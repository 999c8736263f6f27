"""Should an encoder and a decoder share one table of positions?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from posembed.calls import named, unknown
from posembed.errors import ArgumentError
from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.tasks.pairs import PROBLEMS
from posembed.lab.tasks.problems_specs import (
    EXACT,
    LOSS,
    LOSS_WITHIN,
    ONE,
    PAST,
    SAME_ON_BOTH,
    TABLES,
    TOKENS,
    TWO,
    WITHIN,
    SharingSpec,
    lengths_of,
)
from posembed.measure.metrics import Metric


class Sharing(TrainedQuestion):
    name = "sharing"
    metrics = (WITHIN, LOSS_WITHIN, PAST, EXACT, TOKENS, LOSS)
    Spec = SharingSpec
    two_tables: Mapping[str, str]
    """What a second table gains, by its verdict."""
    names_help = f"What to compare, separated by commas: {', '.join((*TABLES, *SAME_ON_BOTH))}."

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes depend on the problem, so no preset sets them."""
        chosen = super().settings(preset, given)
        problem = named("problem", chosen["problem"], PROBLEMS)
        return {"train_size": problem.train_size, "test_sizes": problem.test_sizes, **chosen}

    def check_name(self, name: str) -> None:
        if name == "learned":
            raise ArgumentError(f"a learned table is {ONE} or {TWO} here; choose one of them, or both")
        if name not in (*TABLES, *SAME_ON_BOTH):
            raise unknown("encoding", name, (*TABLES, *SAME_ON_BOTH), of=" of an encoder and a decoder")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.sharing import Rewriting

        return Rewriting(chosen["problem"]), lengths_of(chosen["problem"], chosen["train_size"])

    def axis(self, results: Results, metric: Metric) -> Axis:
        spec = results[0].spec
        return Axis(PROBLEMS[spec.problem].unit, max(spec.test_sizes), trained=spec.train_size)

    def facts(self, found: Found) -> dict[str, Any]:
        problem, largest = PROBLEMS[found.spec.problem], found.spec.train_size
        return {"problem": problem, "sizes": "one" if largest == 1 else f"1 to {largest:,} {problem.unit}"}

    def remarks(self, found: Found) -> Iterable[str]:
        two = found.versus(WITHIN, TWO) if found.reference == ONE and TWO in found.names else None
        if two is None:
            return
        more = found.row(TWO).position_parameters - found.row(ONE).position_parameters
        yield (
            "Guides call two tables a mistake where one could be shared. The second table adds "
            f"{more:,} parameters ({more / found.row(ONE).parameters:.1%} of the model) {self.two_tables[two.verdict]}"
        )
