"""Figures that advice rests on: of a run folder of one's own, or those of the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.questions.lengths import LengthSummary, summarise_lengths
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.language import LanguageModelling

COMMITTED = Path(__file__).with_name("evidence.json")
"""Taken from the documentation by benchmarks/evidence.py, and held equal to it by a test."""


@dataclass(frozen=True)
class Interval:
    """A perplexity; low and high are its 95 % interval, None for a single run."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measured:
    """One encoding: the perplexity of the same tokens by tokens of context; None where it has no position."""

    encoding: str
    window: int | None
    seeds: int
    by_length: tuple[tuple[int, Interval | None], ...]

    def at(self, length: int) -> Interval | None:
        return dict(self.by_length).get(length)


@dataclass(frozen=True)
class Study:
    """Encodings trained alike. own: a person's own runs, which may overrule the rules."""

    title: str
    source: str
    train_length: int
    rows: tuple[Measured, ...]
    own: bool = False

    @property
    def longest(self) -> int:
        return max(length for row in self.rows for length, _ in row.by_length)

    def row(self, encoding: str) -> Measured | None:
        return next((row for row in self.rows if row.encoding == encoding), None)


def committed_studies() -> list[Study]:
    """Those of the documentation, the ones with intervals first."""
    return studies_from(json.loads(COMMITTED.read_text(encoding="utf-8")))


def study_of_folder(folder: Path) -> Study:
    """The runs of ``posembed compare lengths --out FOLDER``.

    Raises:
        RunFolderError, ArgumentError: no such folder, one of another question, or no run finished.
    """
    runs = RunFolder(folder, LanguageModelling)
    question = runs.settings().get("question")
    if question != LanguageModelling.Spec.QUESTION:
        raise RunFolderError(
            f"{folder} holds runs of posembed compare {question}; advice rests on posembed compare lengths"
        )
    results = runs.results()
    if not any(result.measurements for result in results):
        raise ArgumentError(f"{folder} has no finished run yet; let posembed compare lengths finish one")
    return study_of_summary(summarise_lengths(results), str(folder))


def study_of_summary(summary: LengthSummary, source: str) -> Study:
    rows = tuple(
        Measured(
            row.encoding,
            row.window,
            len(row.seeds),
            tuple(
                (length, None if value is None else Interval(value.mean, value.low, value.high))
                for length, value in row.same_tokens.items()
            ),
        )
        for row in summary.rows
        if row.seeds
    )
    return Study(f"your runs, trained at {summary.train_length:,}", source, summary.train_length, rows, own=True)


def studies_from(values: Sequence[dict[str, Any]]) -> list[Study]:
    """From what JSON keeps."""
    return [
        Study(
            study["title"],
            study["source"],
            study["train_length"],
            tuple(
                Measured(
                    row["encoding"],
                    row["window"],
                    row["seeds"],
                    tuple((n, None if value is None else Interval(**value)) for n, value in row["by_length"]),
                )
                for row in study["rows"]
            ),
        )
        for study in values
    ]
