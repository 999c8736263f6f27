"""How far does each encoding carry past its training length? Its runs, and what they say together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.encodings import split_name
from posembed.lab.measure import Measurements
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.language import LanguageSpec
from posembed.statistics import Estimate, estimate, paired_difference

USUAL_REFERENCE = "alibi"

ByLength: TypeAlias = dict[int, Estimate | None]
"""None: the encoding has no position at that length."""


def length_runs(
    settings: LanguageSpec, encodings: Sequence[str], seeds: int, *, reference: str | None = None
) -> list[LanguageSpec]:
    """How far does each encoding carry? A run for every encoding and seed; all of a seed first, so that a whole
    comparison is there as early as can be. The encoding and seed of ``settings`` do not matter.

    Raises:
        ArgumentError: an unknown encoding, none at all, no seed, or a reference that is not among them.
    """
    for name in encodings:
        split_name(name)
    if reference not in (None, *encodings):
        raise ArgumentError(
            f"the reference {reference!r} is not among those to run, {', '.join(encodings)}; add it to them"
        )
    if not encodings or seeds < 1:
        raise ArgumentError(f"expected at least one encoding and one seed, got {list(encodings)} and {seeds}")
    return [
        dataclasses.replace(settings, encoding=name, seed=seed)
        for seed in range(seeds)
        for name in dict.fromkeys(encodings)
    ]


LengthResult: TypeAlias = RunResult[LanguageSpec, Measurements]


@dataclass(frozen=True)
class LengthRow:
    """One encoding over its seeds. Perplexities are per token, intervals over seeds.

    ``ratio`` and ``versus_reference`` are ratios of same-token perplexities, by seed: to the encoding's own at the
    training length, and to the reference's at the same length.
    """

    encoding: str
    window: int | None
    seeds: tuple[int, ...]
    failures: tuple[str, ...]
    parameters: int
    position_parameters: int
    perplexity: ByLength
    bits_per_byte: ByLength
    same_tokens: ByLength
    chopped: ByLength
    chopped_same_tokens: ByLength
    ratio: ByLength
    versus_reference: ByLength
    repeat_gain: ByLength
    """In nats a token, by the number of tokens between a passage and its repetition."""


@dataclass(frozen=True)
class LengthSummary:
    train_length: int
    test_lengths: tuple[int, ...]
    gaps: tuple[int, ...]
    reference: str | None
    rows: tuple[LengthRow, ...]


def summarise_lengths(results: Sequence[LengthResult], *, reference: str | None = None) -> LengthSummary:
    """One row an encoding, in the order of the results.

    Args:
        results: of runs that share all settings but encoding and seed.
        reference: the encoding that the others are held against; None takes ALiBi, if it was run.

    Raises:
        ArgumentError: no result at all, or none of the reference.
    """
    if not results:
        raise ArgumentError("no run is finished yet; there is nothing to summarise")
    names = list(dict.fromkeys(result.spec.encoding for result in results))
    if reference is None and USUAL_REFERENCE in names:
        reference = USUAL_REFERENCE
    if reference not in (None, *names):
        raise ArgumentError(f"the reference {reference!r} was not run; there are {', '.join(names)}")
    by_name = {name: [r for r in results if r.spec.encoding == name] for name in names}
    rows = tuple(_row(by_name[name], by_name.get(reference or "", [])) for name in names)
    spec = results[0].spec
    gaps = sorted({gap for r in results if r.measurements for gap in r.measurements.repeat_gain})
    return LengthSummary(spec.train_length, spec.test_lengths, tuple(gaps), reference, rows)


def _row(results: Sequence[LengthResult], reference: Sequence[LengthResult]) -> LengthRow:
    spec = results[0].spec
    lengths = spec.test_lengths
    ours = {r.spec.seed: r.measurements for r in results if r.measurements is not None}
    theirs = {r.spec.seed: r.measurements for r in reference if r.measurements is not None}
    gaps = next(iter(ours.values())).repeat_gain if ours else ()

    def over_seeds(read: Callable[[Measurements, int], float | None], keys: Sequence[int] = lengths) -> ByLength:
        return {key: _estimate([read(m, key) for m in ours.values()]) for key in keys}

    def perplexities(name: str) -> ByLength:
        losses = over_seeds(lambda m, length: getattr(m, name)[length])
        return {length: loss and loss.exp() for length, loss in losses.items()}

    def ratio(length: int, others: dict[int, Measurements], other_length: int | None) -> Estimate | None:
        if other_length is None:
            return None
        a = _present({seed: m.same_tokens[length] for seed, m in ours.items()})
        b = _present({seed: m.same_tokens[other_length] for seed, m in others.items()})
        difference = paired_difference(a, b)
        return difference and difference.exp()

    return LengthRow(
        encoding=spec.encoding,
        window=results[0].window,
        seeds=tuple(sorted(ours)),
        failures=tuple(f"seed {r.spec.seed}: {r.failure}" for r in results if r.failure is not None),
        parameters=results[0].parameters,
        position_parameters=results[0].position_parameters,
        perplexity=perplexities("nonoverlapping"),
        bits_per_byte=over_seeds(lambda m, length: bits_per_byte(m.nonoverlapping[length], m.bytes_per_token[length])),
        same_tokens=perplexities("same_tokens"),
        chopped=perplexities("chopped"),
        chopped_same_tokens=perplexities("chopped_same_tokens"),
        ratio={length: ratio(length, ours, base_length(spec)) for length in lengths},
        versus_reference={length: ratio(length, theirs, length) for length in lengths},
        repeat_gain=over_seeds(lambda m, gap: m.repeat_gain[gap], tuple(gaps)),
    )


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    there = [value for value in values if value is not None]
    return estimate(there) if there else None


def _present(values: dict[int, float | None]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if value is not None}


def bits_per_byte(loss: float | None, bytes_per_token: float | None) -> float | None:
    """A loss in nats a token, as bits a byte of text."""
    if loss is None or bytes_per_token is None:
        return None
    return loss / math.log(2) / bytes_per_token


def base_length(tested: LanguageSpec | LengthSummary) -> int | None:
    """What ratios are taken against: the training length where it is tested, else the longest below it."""
    return max((length for length in tested.test_lengths if length <= tested.train_length), default=None)
