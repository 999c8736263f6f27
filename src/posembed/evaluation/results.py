"""The result of an evaluation: values by length with intervals over texts, and paired differences between rows.

``ResultsFile`` keeps the underlying counts, so that nothing is counted twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posembed.errors import DataError
from posembed.evaluation.counts import Counts
from posembed.evaluation.measures import MEASURES, ByText
from posembed.evaluation.runnable import Kind
from posembed.files import reason
from posembed.statistics import Estimate

Unit = Literal["text", "query", "document", "image"]
UNITS: dict[Unit, str] = {"text": "texts", "query": "queries", "document": "documents", "image": "images"}
"""What has one value each, and its plural."""


@dataclass(frozen=True)
class Row:
    """The values of one checkpoint or baseline at all lengths.

    baseline: the treatment of texts beyond the original length, such as "chunked at 512"; "" for a checkpoint itself.
    length: the maximum number of tokens that the checkpoint takes; None means no limit. texts: a hash of the texts.
    by_text: the values of each measure at each length, one per text.
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
        """Returns the measure with its 95% interval over texts; None without finite values."""
        values = self.by_text[measure][length]
        return None if values is None else MEASURES[measure].estimate(values)

    def versus(self, other: Row, measure: str, length: int) -> Estimate | None:
        """Returns the difference from another row (a ratio for perplexities), paired by text. Returns None if a row has
        no values, or if the texts of the rows differ."""
        ours, theirs = self.by_text[measure][length], other.by_text[measure][length]
        if ours is None or theirs is None or self.texts != other.texts:
            return None
        return MEASURES[measure].estimate([our - their for our, their in zip(ours, theirs, strict=True)])

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

    @property
    def checkpoints(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.baseline)

    @property
    def reference(self) -> Row:
        """The row that the others are compared with: the chunked baseline, or else the first checkpoint."""
        return self.rows[-1] if self.rows[-1].baseline else self.rows[0]

    def best(self, measure: str, length: int, rows: Sequence[Row] | None = None) -> Row | None:
        """Returns the row with the best value among ``rows``; None means the checkpoints."""
        sign = 1 if MEASURES[measure].perplexity else -1
        among = self.checkpoints if rows is None else rows
        found = [(row, at.value) for row in among if (at := row.estimate(measure, length))]
        return min(found, key=lambda pair: sign * pair[1], default=(None,))[0]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON: each value and its difference from the reference, with their intervals."""
        rows = [
            {
                **{name: getattr(row, name) for name in ("checkpoint", "baseline", "length")},
                "values": {m: {length: self.value(row, m, length) for length in self.lengths} for m in self.measures},
            }
            for row in self.rows
        ]
        plain = {name: value for name, value in vars(self).items() if name not in ("unit", "texts")}
        return {**plain, UNITS[self.unit]: self.texts, "reference": self.reference.name, "rows": rows}

    def __repr__(self) -> str:
        """Returns the first measure of each row at each length, with half of the 95% interval."""
        measure = self.measures[0]

        def cell(row: Row, length: int) -> str:
            found = row.estimate(measure, length)
            if found is None:
                return f"{length:,}: none"
            spread = "" if found.low is None or found.high is None else f" ±{(found.high - found.low) / 2:.3f}"
            return f"{length:,}: {found.value:.3f}{spread}"

        rows = (f"  {row.name}  {', '.join(cell(row, length) for length in self.lengths)}" for row in self.rows)
        return "\n".join([f"{measure} of {self.texts:,} {UNITS[self.unit]}, by length", *rows])

    def value(self, row: Row, measure: str, length: int) -> dict[str, Any] | None:
        def ends(found: Estimate) -> dict[str, float | None]:
            return {"value": found.value, "low": found.low, "high": found.high}

        found, versus = row.estimate(measure, length), row.versus(self.reference, measure, length)
        return None if found is None else {**ends(found), "versus_reference": versus and ends(versus)}


class ResultsFile(dict[str, Counts]):
    """A dictionary of counts by key, kept in a file with one JSON line per key. Without a path, it is only in memory.

    Raises DataError if the file cannot be read, or if one of its lines is not a result.
    """

    def __init__(self, path: str | Path | None) -> None:
        super().__init__()
        self.path = None if path is None else Path(path)
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path}: cannot be read as a results file ({reason(error)}); name another file"
            ) from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self[entry["key"]] = dict(entry["values"])
            except (ValueError, KeyError, TypeError) as error:
                remedy = "delete that line to measure it again" if self else "name another file"
                raise DataError(f"{self.path}: line {number} is not a result ({error}); {remedy}") from error

    def prepare(self) -> None:
        """Creates the file if there is none. Raises DataError if nothing can be written there."""
        self._append(b"")

    def add(self, key: str, counts: Counts, **about: Any) -> None:
        """Adds counts and appends them to the file. about: extra fields of the line, for human readers."""
        self[key] = counts
        self._append(json.dumps({"key": key, **about, "values": counts}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if line and file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                    file.write(b"\n")  # an editor or a killed process left the last line without a newline
                file.write(line)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.path}: results cannot be written there ({reason(error)}); name another file"
            ) from error
