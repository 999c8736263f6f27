"""The result of a fine-tuning: the measurements of all seeds, and which model and way of reading they recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.evaluation.results import Evaluation, Row
from posembed.measure.estimates import Comparison
from posembed.measure.summary import plain
from posembed.statistics import Estimate
from posembed.tuning.settings import TuneSettings

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """A finished fine-tuning.

    out: the fine-tuned folder. steps: the number of steps. evaluation: the measurements on held-out documents, of all
    seeds. names: the names of the rows of the fine-tuned checkpoint ("tuned"), and of the same fine-tuning at the old
    length ("old"), if there is one. kept: the mean cosine between the vectors of the tuned and of the original model,
    for short texts or held-out images; None for a model without such vectors. chunked: the baseline of the candidates
    in chunks; "" means ``evaluation.reference.baseline``. old_rows: the number of positions in the original's table.
    moved: how far the rows of the resized table moved, for each seed, as ``rows_moved`` returns it.
    """

    out: Path
    settings: TuneSettings
    steps: int
    evaluation: Evaluation
    names: Mapping[str, str]
    kept: Estimate | None = None
    chunked: str = ""
    old_rows: int = 0
    moved: tuple[Mapping[int, float], ...] = ()

    def __repr__(self) -> str:
        return (
            f"{self.out}, fine-tuned in {self.steps:,} steps; recommended: {self.recommended.name}\n{self.evaluation}"
        )

    @property
    def measure(self) -> str:
        return self.evaluation.measures[0]

    @property
    def length(self) -> int:
        return self.settings.length

    @property
    def candidates(self) -> tuple[Row, ...]:
        """The rows among which the recommendation chooses, fixed beforehand: the original in chunks (for images, first
        scaled down), the same fine-tuning at the old length in chunks, and the fine-tuned checkpoint at the new length,
        in the order of what they cost."""
        reference, rows = (
            self.evaluation.reference,
            {(row.checkpoint, row.baseline): row for row in self.evaluation.rows},
        )
        baseline = self.chunked or reference.baseline
        chunked = [rows[reference.checkpoint, baseline]] if self.chunked else []
        chunked += [rows[self.names["old"], baseline]] if "old" in self.names else []
        return reference, *chunked, rows[self.names["tuned"], ""]

    @property
    def recommended(self) -> Row:
        """The cheapest candidate, unless a more costly one is significantly better: over documents, and with three
        seeds or more also over seeds."""
        best = self.candidates[0]
        for row in self.candidates[1:]:
            if (versus := self.versus(row, best)) is not None and versus.verdict == "better":
                best = row
        return best

    def versus(self, row: Row, other: Row) -> Comparison | None:
        return row.versus(other, self.measure, self.length)

    def frame(self) -> pandas.DataFrame:
        """Returns every value of every seed as a tidy frame, as ``Evaluation.frame`` does."""
        return self.evaluation.frame()

    @property
    def pays(self) -> bool:
        """Whether the longer table is recommended."""
        return self.recommended is self.candidates[-1]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON. Numbers that are not finite are null."""
        values = {
            "out": str(self.out),
            "settings": self.settings.to_dict(),
            "steps": self.steps,
            "recommended": self.recommended.name,
            "pays": self.pays,
            "kept": self.kept and {"value": self.kept.value, "low": self.kept.low, "high": self.kept.high},
            "moved": [dict(each) for each in self.moved],
            "evaluation": self.evaluation.to_dict(),
        }
        return plain(values)


def with_seeds(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Returns one evaluation with the values of all seeds."""
    of_rows = zip(*(each.rows for each in evaluations), strict=True)
    rows = tuple(replace(rows[0], runs=tuple(run for row in rows for run in row.runs)) for rows in of_rows)
    return replace(evaluations[0], rows=rows)
