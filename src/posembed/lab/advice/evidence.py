"""The evidence for advice: the measurements published in the documentation, or a user's run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from posembed.errors import ArgumentError, RunFolderError
from posembed.statistics import Estimate

PUBLISHED = Path(__file__).with_name("evidence.json")
"""Generated from the documentation by benchmarks/evidence.py; a test checks that both agree."""


@dataclass(frozen=True)
class Measured:
    """The perplexity of one encoding on the same tokens, by context length. None means no position."""

    encoding: str
    window: int | None
    seeds: int
    """The number of runs."""
    by_length: dict[int, Estimate | None]


@dataclass(frozen=True)
class Study:
    """Results of encodings that were trained in the same way. own: whether the study is the user's own."""

    title: str
    source: str
    train_length: int
    rows: tuple[Measured, ...]
    own: bool = False

    @property
    def longest(self) -> int:
        return max(length for row in self.rows for length in row.by_length)

    def row(self, encoding: str | None) -> Measured | None:
        return next((row for row in self.rows if row.encoding == encoding), None)

    def perplexity(self, encoding: str | None, length: int) -> Estimate | None:
        row = self.row(encoding)
        return None if row is None else row.by_length.get(length)


def published_studies() -> list[Study]:
    """Returns the studies in the documentation. Studies with more seeds come first."""
    return read_studies(PUBLISHED.read_text(encoding="utf-8"))


def study_of_folder(folder: Path) -> Study:
    """Reads the runs of ``posembed compare lengths --out FOLDER``. Raises RunFolderError if the folder holds anything
    else, and ArgumentError if no run is finished."""
    from posembed.lab.questions.lengths import Lengths
    from posembed.lab.runs.results import RunFolder, read_settings

    lengths = Lengths()
    question = read_settings(folder)["question"]
    if question != lengths.name:
        raise RunFolderError(
            f"{folder} holds runs of posembed compare {question}; advice needs runs of posembed compare lengths"
        )
    results = RunFolder(folder, lengths.Spec).results()
    if not any(result.measurements for result in results):
        raise ArgumentError(f"{folder} has no finished run yet; let posembed compare lengths finish one")
    summary = lengths.summarise(results)
    rows = (Measured(row.name, row.window, len(row.seeds), row.same_tokens) for row in summary.rows if row.seeds)
    title = f"your runs, trained at {summary.train_length:,}"
    return Study(title, str(folder), summary.train_length, tuple(rows), own=True)


def read_studies(text: str) -> list[Study]:
    """Reads the text of evidence.json, in which an estimate is [mean], [mean, low, high], or null for no position."""
    studies = []
    for study in json.loads(text):
        for row in study["rows"]:
            ends = {int(length): ends for length, ends in row["by_length"].items()}
            row["by_length"] = {length: None if each is None else Estimate(*each) for length, each in ends.items()}
        studies.append(Study(**study | {"rows": tuple(Measured(**row) for row in study["rows"])}))
    return studies
