"""The result of an evaluation: values by length with intervals over texts, and paired differences between rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from posembed.evaluation.measures import METRICS
from posembed.evaluation.settings import Kind
from posembed.measure.estimates import Comparison, compared_over_items, mean_over_items
from posembed.measure.frame import Frame, Run
from posembed.measure.metrics import Metric
from posembed.measure.summary import Axis, Summary
from posembed.statistics import INTERVAL, Estimate

if TYPE_CHECKING:
    import pandas

Unit = Literal["text", "query", "document", "image"]
FEW_BASELINES = 3
UNITS: dict[Unit, str] = {"text": "texts", "query": "queries", "document": "documents", "image": "images"}
"""The kinds of items that have one value each, with their plurals."""


@dataclass(frozen=True)
class Row:
    """The values of one checkpoint or baseline at all lengths.

    baseline: the treatment of texts beyond the original length, such as "chunked at 512"; "" for a checkpoint itself.
    length: the maximum number of tokens that the checkpoint takes; None means no limit. runs: the values, by seed.
    """

    checkpoint: str
    baseline: str
    length: int | None
    runs: tuple[Run, ...]
    failures: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        return f"{self.checkpoint}, {self.baseline}" if self.baseline else self.checkpoint

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def estimate(self, measure: str, length: int) -> Estimate | None:
        """Returns the measure with its 95% interval over texts; None without finite values."""
        return mean_over_items(METRICS[measure], self.runs, length)

    def versus(self, other: Row, measure: str, length: int) -> Comparison | None:
        """Compares with another row on the same texts; None if a row has no values, or if their texts differ."""
        ours, theirs = ({run.seed: run for run in row.runs} for row in (self, other))
        return compared_over_items(METRICS[measure], ours, length, theirs, length)

    def fits(self, length: int) -> bool:
        return bool(self.baseline) or self.length is None or length <= self.length


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The rows of all checkpoints and baselines.

    texts: the number of values behind each mean. unit: what each of these values belongs to. notes: remarks of a
    sentence or two.
    """

    kind: Kind
    measures: tuple[str, ...]
    lengths: tuple[int, ...]
    texts: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    unit: Unit = "text"

    def frame(self) -> pandas.DataFrame:
        """Returns every value as a tidy frame: one line per model, seed, text, measure and length.

        Perplexities are stored as losses, "log perplexity": exp(sum of values / sum of weights) is the perplexity.

        Columns: run, seed, item (the text, query, document or image), metric, x (the length), value, weight.
        """
        return self.summary().to_pandas()

    def summary(self, rows: Sequence[Row] | None = None, reference: Row | None = None) -> Summary:
        """Returns the summary of some rows (by default all) that pages show, compared with a reference."""
        return Evaluated(self, rows or self.rows, reference or self.reference)

    @property
    def checkpoints(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.baseline)

    @property
    def reference(self) -> Row:
        """The row that the others are compared with: the chunked baseline, or else the first checkpoint."""
        return self.rows[-1] if self.rows[-1].baseline else self.rows[0]

    def best(self, measure: str, length: int, rows: Sequence[Row] | None = None) -> Row | None:
        """Returns the row with the best value among ``rows``; None means the checkpoints."""
        found = self.summary(self.checkpoints if rows is None else rows)
        best = next(map(found.row, found.best_first(METRICS[measure], length)), None)
        return best if best and best.estimate(measure, length) else None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON: each value, and how it compares with the reference, with their intervals."""
        named = {name: getattr(self, name) for name in ("kind", "measures", "lengths", "notes")}
        rows = [
            {name: getattr(row, name) for name in ("name", "checkpoint", "baseline", "length")} for row in self.rows
        ]
        of = {UNITS[self.unit]: self.texts, "reference": self.reference.name}
        return {**named, **of, "rows": rows, "estimates": self.summary().estimates()}

    def __repr__(self) -> str:
        """Returns the first measure of each row at each length, with its 95% interval."""
        measure = self.measures[0]

        def cell(row: Row, length: int) -> str:
            found = row.estimate(measure, length)
            if found is None:
                return f"{length:,}: none"
            spread = "" if found.low is None or found.high is None else f" ({found.low:.3f} to {found.high:.3f})"
            return f"{length:,}: {found.value:.3f}{spread}"

        rows = (f"  {row.name}  {', '.join(cell(row, length) for length in self.lengths)}" for row in self.rows)
        return "\n".join([f"{measure} of {self.texts:,} {UNITS[self.unit]}, by length", *rows])


class Evaluated(Summary):
    """The estimates of an evaluation, whose intervals are over texts."""

    of_each, past_end = "checkpoint", "takes at most"

    def __init__(self, evaluation: Evaluation, rows: Sequence[Row], reference: Row) -> None:
        frame = Frame(tuple(run for row in rows for run in row.runs))
        super().__init__(frame, [row.name for row in rows], reference.name)
        self.rows, self.metrics = rows, [METRICS[name] for name in evaluation.measures]
        self.longest = evaluation.lengths[-1]
        self.axis = Axis("pixels" if evaluation.kind == "images" else "tokens", self.longest)
        self.unit, self.items = evaluation.unit, UNITS[evaluation.unit]
        self.paired_by, self.baselines = evaluation.unit, [row.name for row in rows if row.baseline]

    @property
    def drawn(self) -> Sequence[Row]:
        """All rows; if there are many baselines, only the reference and the best row of them."""
        if len(self.baselines) <= FEW_BASELINES:
            return self.rows
        kept = (self.reference, self.best_first(self.headline, self.x)[0])
        return [row for row in self.rows if not row.baseline or row.name in kept]

    @property
    def bands(self) -> str:
        return f"Shaded bands are {INTERVAL}s over {self.items}."

    def end(self, name: str) -> int | None:
        row = self.row(name)
        return None if row.fits(self.longest) else row.length

    @property
    def short_reference(self) -> str:
        return "the reference"

    def missing(self, name: str, x: int | None) -> str:
        return "not finite" if self.row(name).fits(x) else "too long"

    def mean(self, metric: Metric, name: str, x: int | None = None) -> Estimate | None:
        found = mean_over_items(metric, list(self.runs(name).values()), x)
        return found and replace(found, values=())

    def _compared(self, *given: Any) -> Comparison | None:
        return compared_over_items(*given)
