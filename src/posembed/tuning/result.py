"""The result of a fine-tuning: the measurements of its seeds, and which model and way to read them recommend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posembed._version import __version__
from posembed.evaluation.measures import MEASURES, ByText
from posembed.evaluation.results import Evaluation, Row
from posembed.modelfiles.copies import RECORD
from posembed.statistics import Estimate
from posembed.tuning.settings import TRAINED, TuneSettings

ENOUGH_SEEDS = 3
"""With fewer seeds, an interval over them is too wide to decide anything."""


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """A finished fine-tuning.

    out: the fine-tuned folder. steps: the number of steps. evaluation: the measurements on held-out documents, the
    mean over seeds. by_seed: those of each seed. names: the names of the rows of the fine-tuned checkpoint ("tuned"),
    and of the same fine-tuning at the old length ("old"), if there is one. kept: the mean cosine of the vectors of
    short texts to those of the original model; None for a model without such vectors. chunked: the baseline with
    which the fine-tuning at the old length is compared, if it is not that of the reference. old_length: the length of
    the original. old_rows: the number of positions of its table. moved: for each seed, how far the rows of the resized
    table moved, as ``rows_moved`` returns it.
    """

    out: Path
    settings: TuneSettings
    steps: int
    evaluation: Evaluation
    by_seed: tuple[Evaluation, ...]
    names: Mapping[str, str]
    kept: Estimate | None = None
    chunked: str = ""
    old_length: int = 0
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
        best, measure = self.candidates[0], MEASURES[self.measure]
        for row in self.candidates[1:]:
            better = measure.verdict(self.versus(row, best)) == "better"
            if better and len(self.by_seed) >= ENOUGH_SEEDS:
                better = measure.verdict(self.versus_by_seed(row, best)) == "better"
            if better:
                best = row
        return best

    def versus(self, row: Row, other: Row) -> Estimate | None:
        return row.versus(other, self.measure, self.length)

    def versus_by_seed(self, row: Row, other: Row) -> Estimate | None:
        """Returns the difference from another row (a ratio for perplexities), with Student's t interval over seeds: the
        documents stay the same, and the random numbers of the fine-tuning change. None with one seed."""
        measure, found = MEASURES[self.measure], list[float]()
        for evaluation in self.by_seed:
            rows = {each.name: each for each in evaluation.rows}
            versus = self.versus(rows[row.name], rows[other.name])
            if versus is None or len(self.by_seed) < 2:
                return None
            found.append(math.log(versus.value) if measure.perplexity else versus.value)
        return measure.estimate(found)

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
            "by_seed": [each.to_dict() for each in self.by_seed] if len(self.by_seed) > 1 else [],
        }
        return dict(finite(values))

    def card_paragraph(self, length: int) -> str:
        lines = [
            f"## Fine-tuned at {length:,} tokens",
            "",
            f"Trained: {TRAINED[self.settings.train]}; {self.steps:,} steps of {self.settings.batch} windows of "
            f"{self.length:,} tokens{'' if length == self.length else f', read in pieces of {length:,}'}.",
            f"Written by posembed {__version__}; see `{RECORD}` for details.",
        ]
        return "\n".join(lines) + "\n"


def finite(value: Any) -> Any:
    """Returns plain values with None in place of each number that is not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def over_seeds(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Returns the evaluation whose values are the means over seeds."""
    first = evaluations[0]
    rows = tuple(
        replace(
            row,
            by_text={
                measure: averaged([each.rows[at].by_text[measure] for each in evaluations]) for measure in row.by_text
            },
        )
        for at, row in enumerate(first.rows)
    )
    return replace(first, rows=rows)


def averaged(found: Sequence[Mapping[int, ByText]]) -> dict[int, ByText]:
    made: dict[int, ByText] = {}
    for length in found[0]:
        known = [values for each in found if (values := each[length]) is not None]
        made[length] = means(known) if len(known) == len(found) else None
    return made


def means(of_seeds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Returns the mean over seeds of the value of each text."""
    return tuple(sum(texts) / len(texts) for texts in zip(*of_seeds, strict=True))
