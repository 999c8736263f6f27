"""The result of an evaluation: values by length with intervals over texts, and paired differences between rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posembed.evaluation.measures import MEASURES, ByText
from posembed.evaluation.runnable import Kind
from posembed.statistics import Estimate


@dataclass(frozen=True)
class Row:
    """One checkpoint or one baseline, over all lengths.

    baseline: how texts above the original length are fed, such as "chunked at 512"; "" for a checkpoint as it is.
    length: how many tokens the checkpoint takes; None means any number. texts: a hash of the texts.
    by_text: one value per text, by measure and length.
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
        """The measure with its 95% interval over texts; None if there is no finite value."""
        values = self.by_text[measure][length]
        return None if values is None else MEASURES[measure].estimate(values)

    def versus(self, other: Row, measure: str, length: int) -> Estimate | None:
        """The difference from another row, for perplexities the ratio, paired by text; None unless both have values."""
        ours, theirs = self.by_text[measure][length], other.by_text[measure][length]
        if ours is None or theirs is None or self.texts != other.texts:
            return None
        return MEASURES[measure].estimate([our - their for our, their in zip(ours, theirs, strict=True)])

    def fits(self, length: int) -> bool:
        """Whether texts of this length can be fed."""
        return bool(self.baseline) or self.length is None or length <= self.length


@dataclass(frozen=True)
class Evaluation:
    """Values by length. texts: the number of texts. notes: what a reader must know, one sentence or two each."""

    kind: Kind
    measures: tuple[str, ...]
    lengths: tuple[int, ...]
    texts: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def checkpoints(self) -> tuple[Row, ...]:
        """The rows that are not baselines."""
        return tuple(row for row in self.rows if not row.baseline)

    @property
    def reference(self) -> Row:
        """The row that others are compared with: chunking at the original length, or else the first checkpoint."""
        return self.rows[-1] if self.rows[-1].baseline else self.rows[0]

    def best(self, measure: str, length: int) -> Row | None:
        """The checkpoint with the best value; baselines do not count."""
        sign = 1 if MEASURES[measure].perplexity else -1
        found = [(row, at.value) for row in self.checkpoints if (at := row.estimate(measure, length))]
        return min(found, key=lambda pair: sign * pair[1], default=(None,))[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: each value and its difference from the reference, with their intervals."""
        return {
            "kind": self.kind,
            "measures": list(self.measures),
            "lengths": list(self.lengths),
            "texts": self.texts,
            "reference": self.reference.name,
            "rows": [
                {
                    "checkpoint": row.checkpoint,
                    "baseline": row.baseline,
                    "length": row.length,
                    "values": {
                        measure: {length: self.value(row, measure, length) for length in self.lengths}
                        for measure in self.measures
                    },
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }

    def value(self, row: Row, measure: str, length: int) -> dict[str, Any] | None:
        found, versus = row.estimate(measure, length), row.versus(self.reference, measure, length)
        return None if found is None else {**ends(found), "versus_reference": versus and ends(versus)}


def ends(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}
