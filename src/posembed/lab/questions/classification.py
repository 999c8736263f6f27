"""Does the position encoding matter where texts are classified? Its runs, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posembed.lab.encodings import split_name
from posembed.lab.questions.accuracy import Difference, Told, choose_reference, difference, runs_of
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.classification import ClassificationSpec, Classified
from posembed.statistics import Estimate, estimate

USUAL_REFERENCE = "sinusoidal"
UNEVEN = 1.5
"""Classes are uneven if the largest has more than this many times the examples of the smallest."""

ClassificationResult: TypeAlias = RunResult[ClassificationSpec, Classified]


def classification_runs(
    settings: ClassificationSpec, encodings: Sequence[str], seeds: int, *, reference: str | None = None
) -> list[ClassificationSpec]:
    """A run for every encoding and seed. The encoding and seed of ``settings`` do not matter.

    Raises:
        ArgumentError: an encoding that an encoder of text cannot use, none at all, no seed, or a reference that is
            not among them.
    """
    return runs_of(settings, encodings, seeds, reference=reference, require=lambda name: split_name(name, "encoder"))


@dataclass(frozen=True)
class ClassificationRow:
    """One encoding over its seeds."""

    encoding: str
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    parameters: int
    position_parameters: int
    accuracy: Estimate | None
    macro_f1: Estimate | None
    difference: Difference | None
    """Of its accuracy to the reference's; None for the reference itself."""


@dataclass(frozen=True)
class ClassificationSummary:
    reference: str
    classes: dict[str, int]
    """Held-out examples by class."""
    documents: int
    rows: tuple[ClassificationRow, ...]

    @property
    def examples(self) -> int:
        return sum(self.classes.values())

    @property
    def most_frequent(self) -> float:
        """The accuracy of always answering the class that most of the held-out examples have."""
        return max(self.classes.values(), default=0) / max(self.examples, 1)

    @property
    def uneven(self) -> bool:
        return max(self.classes.values(), default=0) > UNEVEN * min(self.classes.values(), default=0)


def summarise_classification(
    results: Sequence[ClassificationResult], *, reference: str | None = None
) -> ClassificationSummary:
    """One row an encoding, in the order of the results.

    Args:
        results: of runs that share all settings but encoding and seed.
        reference: the encoding that the others are held against; None takes the sinusoids, if they were run.

    Raises:
        ArgumentError: no result at all, or none of the reference.
    """
    names = list(dict.fromkeys(result.spec.encoding for result in results))
    against = choose_reference(names, reference, USUAL_REFERENCE)
    measured = next((r.measurements for r in results if r.measurements is not None), None)
    by_name = {name: [r for r in results if r.spec.encoding == name] for name in names}
    return ClassificationSummary(
        reference=against,
        classes={} if measured is None else measured.classes,
        documents=0 if measured is None else len(measured.examples),
        rows=tuple(_row(of, None if name == against else by_name[against]) for name, of in by_name.items()),
    )


def _row(
    results: Sequence[ClassificationResult], reference: Sequence[ClassificationResult] | None
) -> ClassificationRow:
    measured = {r.spec.seed: r.measurements for r in results if r.measurements is not None}
    ours = _told(results)

    def over_seeds(values: list[float]) -> Estimate | None:
        return estimate(values) if values else None

    return ClassificationRow(
        encoding=results[0].spec.encoding,
        seeds=tuple(sorted(measured)),
        failures=tuple(f"seed {r.spec.seed}: {r.failure}" for r in results if r.failure is not None),
        parameters=results[0].parameters,
        position_parameters=results[0].position_parameters,
        accuracy=over_seeds([told.accuracy for told in ours.values()]),
        macro_f1=over_seeds([m.macro_f1 for m in measured.values()]),
        difference=None if reference is None else difference(ours, _told(reference)),
    )


def _told(results: Sequence[ClassificationResult]) -> dict[int, Told]:
    """By seed."""
    return {
        r.spec.seed: Told(r.measurements.right, r.measurements.examples) for r in results if r.measurements is not None
    }
