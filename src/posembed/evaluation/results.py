"""Figures by length, as means over texts: their intervals, and paired differences between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posembed.evaluation.results_file import Counted
from posembed.evaluation.runnable import Kind
from posembed.evaluation.sentences import PLACES
from posembed.statistics import Estimate, estimate, shares

MEASURES: dict[Kind, tuple[str, ...]] = {
    "causal": ("perplexity", "perplexity of the last tokens"),
    "masked": ("masked-token accuracy", "pseudo-perplexity"),
    "sentences": (
        "recall at 1",
        "mean reciprocal rank",
        *(f"recall at 1, passages of the {place}" for place in PLACES),
    ),
}

ByText = tuple[float, ...] | None
"""A value for each text, whose mean is the measure, or its logarithm for a perplexity; None: no finite figure."""


def measures_by_text(kind: Kind, counted: Counted) -> dict[str, ByText]:
    """What was counted in each text -> the measures of that kind of model."""
    if kind == "causal":
        return {
            "perplexity": share(counted["loss"], counted["tokens"]),
            "perplexity of the last tokens": share(counted["loss of the last"], counted["last tokens"]),
        }
    if kind == "masked":
        return {
            "masked-token accuracy": share(counted["found"], counted["hidden"]),
            "pseudo-perplexity": share(counted["loss"], counted["hidden"]),
        }
    ranks = [[rank for rank in counted[place] if rank is not None] for place in PLACES]
    first = [tuple(float(rank == 1) for rank in of_place) for of_place in ranks]
    return {
        "recall at 1": mean_of(first),
        "mean reciprocal rank": mean_of([[1 / rank for rank in of_place] for of_place in ranks]),
        **{f"recall at 1, passages of the {place}": hits for place, hits in zip(PLACES, first, strict=True)},
    }


def share(totals: Sequence[float | None], counts: Sequence[float | None]) -> ByText:
    known = [total for total in totals if total is not None]
    return shares(known, [count or 0 for count in counts]) if len(known) == len(totals) else None


def mean_of(lists: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The passages of one text are no texts of their own: they count together."""
    return tuple(sum(values) / len(values) for values in zip(*lists, strict=True))


@dataclass(frozen=True)
class Row:
    """One checkpoint, or one baseline of a checkpoint, over all lengths.

    baseline: what is done to texts longer than the old length, such as "chopped at 512"; "" for the checkpoint.
    length: how many tokens the checkpoint takes; None where nothing limits that. texts: a hash of them.
    by_text: by measure and length.
    """

    checkpoint: str
    baseline: str
    length: int | None
    texts: str
    by_text: Mapping[str, Mapping[int, ByText]]

    @property
    def name(self) -> str:
        return f"{self.checkpoint}, {self.baseline}" if self.baseline else self.checkpoint

    def estimate(self, measure: str, length: int) -> Estimate | None:
        """A measure with its 95 % interval over texts; None where there is no figure."""
        values = self.by_text[measure][length]
        return None if values is None else on_scale(measure, estimate(values))

    def versus(self, other: Row, measure: str, length: int) -> Estimate | None:
        """The difference from another row, or the ratio of perplexities, paired by text; None without both."""
        ours, theirs = self.by_text[measure][length], other.by_text[measure][length]
        if ours is None or theirs is None or self.texts != other.texts:
            return None
        return on_scale(measure, estimate([our - their for our, their in zip(ours, theirs, strict=True)]))

    def fits(self, length: int) -> bool:
        """Whether the checkpoint, or the baseline, takes texts of this length."""
        return bool(self.baseline) or self.length is None or length <= self.length


@dataclass(frozen=True)
class Evaluation:
    """Figures by length. texts: how many there were. notes: what a reader must know, a line each."""

    kind: Kind
    measures: tuple[str, ...]
    lengths: tuple[int, ...]
    texts: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def reference(self) -> Row:
        """What the other rows are held against: chopping at the old length, or else the first checkpoint."""
        return next((row for row in reversed(self.rows) if row.baseline), self.rows[0])

    def best(self, measure: str, length: int) -> Row | None:
        """The checkpoint with the best figure; baselines left out."""
        there = [(row, at) for row in self.rows if not row.baseline and (at := row.estimate(measure, length))]
        sign = 1 if is_perplexity(measure) else -1
        return min(there, key=lambda pair: sign * pair[1].mean, default=(None,))[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: each figure and its difference from the reference, with their intervals."""

        def of(row: Row, measure: str, length: int) -> dict[str, Any] | None:
            found = row.estimate(measure, length)
            versus = row.versus(self.reference, measure, length)
            return None if found is None else {**ends(found), "versus_reference": versus and ends(versus)}

        rows = [
            {
                "checkpoint": row.checkpoint,
                "baseline": row.baseline,
                "length": row.length,
                "figures": {
                    measure: {length: of(row, measure, length) for length in self.lengths} for measure in self.measures
                },
            }
            for row in self.rows
        ]
        return {
            "kind": self.kind,
            "measures": list(self.measures),
            "lengths": list(self.lengths),
            "texts": self.texts,
            "reference": self.reference.name,
            "rows": rows,
            "notes": list(self.notes),
        }


def is_perplexity(measure: str) -> bool:
    """Perplexities are means of losses, compared by ratios, and better where they are lower."""
    return "perplexity" in measure


def on_scale(measure: str, found: Estimate) -> Estimate:
    return found.exp() if is_perplexity(measure) else found


def told(measure: str, versus: Estimate | None) -> Literal["better", "worse", "untold", "equal", ""]:
    """What a paired difference says: "equal" where no text differs, "untold" where its interval holds nothing."""
    if versus is None:
        return ""
    nothing = 1.0 if is_perplexity(measure) else 0.0
    if all(value == nothing for value in versus.values):
        return "equal"
    if not versus.tells_from(nothing):
        return "untold"
    return "better" if (versus.mean < nothing) == is_perplexity(measure) else "worse"


def ends(found: Estimate) -> dict[str, float | None]:
    return {"value": found.mean, "low": found.low, "high": found.high}
