"""Do different tasks learn the same position table?"""

from __future__ import annotations

from typing import Any

from posembed.calls import named
from posembed.errors import ArgumentError
from posembed.lab.found import Found
from posembed.lab.question import Loaded, Reading, TrainedQuestion
from posembed.lab.similarities import Similarities, similarities_of
from posembed.lab.tasks.text_specs import ByTaskSpec

FEWEST_ROWS = 3


class ByTask(TrainedQuestion):
    name = "by-task"
    Spec = ByTaskSpec
    ReadingType = Reading

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.objectives import OBJECTIVES

        named("objective", name, OBJECTIVES)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.language import initial_table

        initial_table(chosen["init"], 1, 2)
        if chosen["train_length"] < FEWEST_ROWS:
            raise ArgumentError(
                f"train_length must be at least {FEWEST_ROWS}, because tables of fewer rows cannot be compared; got "
                f"{chosen['train_length']}"
            )
        return super().load(chosen)

    def special(self, found: Found) -> Similarities:
        return similarities_of(found)

    def facts(self, found: Found) -> dict[str, Any]:
        from posembed.lab.tasks.objectives import OBJECTIVES

        return {"tasks": "; ".join(f"{name} {OBJECTIVES[name].line}" for name in found.names)}
