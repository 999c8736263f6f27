"""Which positions do images want, and which still serve on another grid? Its runs, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posembed.lab.encodings import split_name
from posembed.lab.questions.accuracy import Difference, Told, choose_reference, difference, runs_of
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.images import ImageSpec, Recognised
from posembed.statistics import Estimate, estimate

USUAL_REFERENCE = "learned-1d"

ImageResult: TypeAlias = RunResult[ImageSpec, Recognised]


def image_runs(
    settings: ImageSpec, encodings: Sequence[str], seeds: int, *, reference: str | None = None
) -> list[ImageSpec]:
    """A run for every encoding and seed. The encoding and seed of ``settings`` do not matter.

    Raises:
        ArgumentError: an encoding that images have no use for, none at all, no seed, or a reference that is not
            among them.
    """
    return runs_of(settings, encodings, seeds, reference=reference, require=lambda name: split_name(name, "images"))


@dataclass(frozen=True)
class ImageRow:
    """One encoding over its seeds, by the side of the images in pixels."""

    encoding: str
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    parameters: int
    position_parameters: int
    accuracy: dict[int, Estimate]
    """Empty where every run failed."""
    difference: dict[int, Difference]
    """To the reference; empty for the reference itself."""


@dataclass(frozen=True)
class ImageSummary:
    train_size: int
    patch: int
    test_sizes: tuple[int, ...]
    examples: int
    """Held-out images."""
    reference: str
    rows: tuple[ImageRow, ...]

    @property
    def farthest(self) -> int:
        """The tested side whose grid differs most from that of training."""
        return max(self.test_sizes, key=lambda size: (abs(size - self.train_size), size))


def summarise_images(results: Sequence[ImageResult], *, reference: str | None = None) -> ImageSummary:
    """One row an encoding, in the order of the results.

    Args:
        results: of runs that share all settings but encoding and seed.
        reference: the encoding that the others are held against; None takes learned-1d, if it was run.

    Raises:
        ArgumentError: no result at all, or none of the reference.
    """
    names = list(dict.fromkeys(result.spec.encoding for result in results))
    against = choose_reference(names, reference, USUAL_REFERENCE)
    by_name = {name: [r for r in results if r.spec.encoding == name] for name in names}
    spec = results[0].spec
    right = next((text for r in results if r.measurements for text in r.measurements.right.values()), "")
    return ImageSummary(
        train_size=spec.train_size,
        patch=spec.patch,
        test_sizes=spec.test_sizes,
        examples=len(right),
        reference=against,
        rows=tuple(_row(of, None if name == against else by_name[against]) for name, of in by_name.items()),
    )


def _row(results: Sequence[ImageResult], reference: Sequence[ImageResult] | None) -> ImageRow:
    sizes = results[0].spec.test_sizes
    seeds = tuple(sorted(r.spec.seed for r in results if r.measurements is not None))
    ours = {size: _told(results, size) for size in sizes}
    differences = {size: difference(ours[size], _told(reference or (), size)) for size in sizes}
    return ImageRow(
        encoding=results[0].spec.encoding,
        seeds=seeds,
        failures=tuple(f"seed {r.spec.seed}: {r.failure}" for r in results if r.failure is not None),
        parameters=results[0].parameters,
        position_parameters=results[0].position_parameters,
        accuracy={size: estimate([told.accuracy for told in ours[size].values()]) for size in sizes if seeds},
        difference={size: of for size, of in differences.items() if of is not None},
    )


def _told(results: Sequence[ImageResult], size: int) -> dict[int, Told]:
    """By seed; each image is a document of its own."""
    return {
        r.spec.seed: Told(tuple(map(int, r.measurements.right[size])), (1,) * len(r.measurements.right[size]))
        for r in results
        if r.measurements is not None
    }
