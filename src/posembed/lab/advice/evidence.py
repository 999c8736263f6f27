"""The evidence for advice: measurements of every encoding, or a user's run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posembed.errors import ArgumentError, RunFolderError
from posembed.statistics import Estimate, estimate
from posembed.words import called, listed

if TYPE_CHECKING:
    from posembed.nn.encodings import Use

PUBLISHED = Path(__file__).with_name("evidence.json")
"""Published measurements, which benchmarks/evidence.py copies from the page of benchmarks/every_encoding.py."""


@dataclass(frozen=True)
class Measure:
    """What a study measures. name: with an article, for sentences. at: how to state a length or size.

    chance: single runs count as equal up to this difference: 0.03 means 3%, or 3 points of a percentage.
    """

    name: str
    at: str
    chance: float
    percent: bool = False
    """True for a percentage (more is better), False for a perplexity (less is better)."""

    def mean(self, values: Sequence[float]) -> Estimate:
        """Returns the mean over seeds with its interval; perplexities are averaged as losses."""
        return estimate(values) if self.percent else estimate([math.log(value) for value in values]).exp()

    def written(self, value: Estimate) -> str:
        """Formats a value with its interval: "5.18 (5.07 to 5.30)", "68.1% (63.2 to 72.0)"."""
        digits, unit, most = (1, "%", 100.0) if self.percent else (2, "", math.inf)
        known = ""
        if value.low is not None and value.high is not None:
            known = f" ({max(value.low, 0.0):.{digits}f} to {min(value.high, most):.{digits}f})"
        return f"{value.value:.{digits}f}{unit}{known}"

    def cost(self, value: Estimate) -> float:
        """Returns a number that is smaller if the value is better."""
        return -value.value if self.percent else value.value

    def differ(self, a: Estimate, b: Estimate) -> bool:
        """Returns whether the 95% interval of the difference, paired by seed, excludes zero. If one of the two has more
        seeds, only those that both have count. Single runs differ if the difference is more than ``chance``."""
        change = (lambda value: value / 100) if self.percent else math.log
        differences = [change(one) - change(other) for one, other in zip(a.values, b.values, strict=False)]
        if len(differences) < 2:
            return any(abs(difference) > self.chance for difference in differences)
        return any(differences) and estimate(differences).side_of(0) != "both"


MEASURES = {
    # Perplexities of one encoding vary by about 1.5% between seeds (docs/research/lengths.md). Accuracies in
    # classifying texts have a standard deviation of 2 points, and in recognizing digits one of 1 to 14
    # (docs/research/tasks-text-images.md).
    "perplexity": Measure("a perplexity", "at {:,} tokens", 0.03),
    "passkey": Measure("a share of passkeys found", "in texts of {:,} characters", 0.05, percent=True),
    "accuracy": Measure("an accuracy in classifying texts", "at {:,} tokens", 0.05, percent=True),
    "labels": Measure("an entity F1 in labelling words", "at {:,} tokens", 0.05, percent=True),
    "images": Measure("an accuracy in recognizing digits", "on images of {0} x {0} pixels", 0.05, percent=True),
}


@dataclass(frozen=True)
class Study:
    """Results of encodings that were trained in the same way.

    kind: a key of ``MEASURES``. use: the kind of model. train_length: in tokens, characters or pixels. rows: the result
    of each encoding by length or size; None means that the encoding has no position there. own: whether the study is
    the user's own.
    """

    title: str
    source: str
    train_length: int
    rows: Mapping[str, Mapping[int, Estimate | None]]
    kind: str = "perplexity"
    use: Use = "decoder"
    own: bool = False
    steps: int | None = None
    """The training steps of the user's own runs."""

    @property
    def measure(self) -> Measure:
        return MEASURES[self.kind]

    @property
    def lengths(self) -> list[int]:
        return sorted({length for by_length in self.rows.values() for length in by_length})

    @property
    def farthest(self) -> float:
        """The longest measured length as a multiple of the training length."""
        return self.lengths[-1] / self.train_length

    def length_for(self, factor: float) -> int:
        """Returns the shortest measured length of at least ``factor`` times the training length, or the longest; for a
        factor of 1, the longest measured length within the training length. Raises ArgumentError if there is none."""
        if factor > 1:
            return next((n for n in self.lengths if n >= factor * self.train_length), self.lengths[-1])
        if self.lengths[0] > self.train_length:
            raise ArgumentError(
                f"{self.source} measures nothing within its training length of {self.train_length:,} tokens, and your "
                f"texts are no longer than that; add {self.train_length} to --test-lengths and run it again"
            )
        return max(n for n in self.lengths if n <= self.train_length)

    def value(self, encoding: str, length: int) -> Estimate | None:
        """Returns an encoding's result at a length; None if it has no position there, was not measured there, or has an
        infinite perplexity there."""
        found = self.rows.get(encoding, {}).get(length)
        return found if found is None or is_finite(found) else None

    def best(self, length: int) -> tuple[str, Estimate] | None:
        """Returns the encoding with the best value at a length, and the value."""
        values = [(name, value) for name in self.rows if (value := self.value(name, length)) is not None]
        return min(values, key=lambda pair: self.measure.cost(pair[1]), default=None)

    def without_order(self, length: int) -> str | None:
        """Returns a sentence if the encoding ``none`` is not significantly worse than the best one at a length: the
        task then does not depend on order, and cannot show which encoding is better. Otherwise None, also if ``none``
        was not measured."""
        best, none = self.best(length), self.value("none", length)
        if best is None or none is None or self.measure.differ(none, best[1]):
            return None
        written = self.measure.written
        known = f"the best value is {written(best[1])}, with {called(best[0])}; " if best[0] != "none" else ""
        return (
            f"{self.measure.name.partition(' ')[2]} hardly depends on order: {known}without positions it is "
            f"{written(none)}, which is {'within chance' if len(none.values) == 1 else 'not significantly worse'}"
        )

    def says(self, encoding: str, value: Estimate, length: int) -> str:
        """Returns a sentence that states a value, the length where it was measured, and the length in training."""
        at = self.measure.at.format
        trained = "as in training" if length == self.train_length else f"trained {at(self.train_length)}"
        return f"{called(encoding)} has {self.measure.name} of {self.measure.written(value)} {at(length)}, {trained}"


def is_finite(value: Estimate) -> bool:
    return all(map(math.isfinite, value.values)) and math.isfinite(value.value)


def published_studies() -> list[Study]:
    """Returns the studies of benchmarks/results/every-encoding.md, one per measure.

    In the file, each value is a list with one number per seed, or null for no position.
    """
    studies = []
    for study in json.loads(PUBLISHED.read_text(encoding="utf-8")):
        mean = MEASURES[study["kind"]].mean
        rows = {
            encoding: {int(length): None if each is None else mean(each) for length, each in by_length.items()}
            for encoding, by_length in study.pop("rows").items()
        }
        studies.append(Study(**study, rows=rows))
    return studies


def study_of_folder(folder: Path) -> Study:
    """Reads the runs of ``posembed compare lengths --out FOLDER``. Of these, only the seeds count that every encoding
    has, because seeds differ from each other by more than encodings do.

    Raises RunFolderError if the folder holds anything else, and ArgumentError if no seed is finished with every
    encoding.
    """
    from posembed.lab.questions.lengths import Lengths
    from posembed.lab.runs.results import RunFolder
    from posembed.measure.jobs import read_settings

    lengths = Lengths()
    question = read_settings(folder)["question"]
    if question != lengths.name:
        raise RunFolderError(
            f"{folder} holds runs of posembed compare {question}; advice needs runs of posembed compare lengths"
        )
    results = RunFolder(folder, lengths.Spec).results()
    if not any(result.measurements for result in results):
        raise ArgumentError(f"{folder} has no finished run yet; let posembed compare lengths finish one")
    found = lengths.summarise(results)
    seeds = {row.name: set(row.seeds) for row in found.rows if row.seeds}
    if not (common := set.intersection(*seeds.values())):
        runs = listed([f"{called(name)} has {listed(map(str, sorted(each)))}" for name, each in seeds.items()])
        raise ArgumentError(f"{folder} has no seed that is finished with every encoding: {runs}; run the missing seeds")
    found = lengths.summarise([result for result in results if result.spec.seed in common])
    rows = {
        row.name: {x: found.mean(found.headline, row.name, x) for x in found.spec.test_lengths}
        for row in found.rows
        if row.seeds
    }
    if not any(each is not None and is_finite(each) for values in rows.values() for each in values.values()):
        raise ArgumentError(
            f"the runs of {folder} diverged: each encoding has an infinite perplexity; give a lower --learning-rate"
        )
    steps = max(result.spec.steps for result in results)
    return Study("your runs", str(folder), found.spec.train_length, rows, own=True, steps=steps)
