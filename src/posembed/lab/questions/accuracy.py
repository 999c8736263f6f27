"""How often classes are told, and whether two encodings differ in it by more than chance.

There are two chances: of the seed, and of which documents were held out. A difference has an interval for each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from posembed.errors import ArgumentError
from posembed.lab.tasks.task import SpecT
from posembed.statistics import Estimate, estimate, paired_difference, shares

FEWEST_ALIKE = 6
"""Fewer documents with one and the same difference tell nothing: n equal signs have a chance of 2^(1 - n)."""


@dataclass(frozen=True)
class Told:
    """Of one run: by held-out document, how many examples were told, and how many there are."""

    right: tuple[int, ...]
    examples: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / sum(self.examples)


@dataclass(frozen=True)
class Difference:
    """An accuracy less the reference's, with equal seeds and equal held-out examples. Shares, not percent."""

    over_seeds: Estimate
    """Paired by seed: would other seeds say the same?"""
    over_documents: Estimate
    """Of the mean over seeds, paired by document: would other documents? Its values are left out."""

    @property
    def told(self) -> bool:
        """Whether it can be told from nothing: neither interval holds 0, and both are known."""
        return self.over_seeds.tells_from(0) and self.over_documents.tells_from(0)


def difference(ours: Mapping[int, Told], theirs: Mapping[int, Told]) -> Difference | None:
    """Of runs by seed, over the seeds that both have; None where they share none."""
    shared = sorted(ours.keys() & theirs.keys())
    over_seeds = paired_difference(
        {seed: told.accuracy for seed, told in ours.items()},
        {seed: told.accuracy for seed, told in theirs.items()},
    )
    if over_seeds is None:
        return None
    examples = ours[shared[0]].examples
    gained = [
        math.fsum(ours[seed].right[i] - theirs[seed].right[i] for seed in shared) / len(shared)
        for i in range(len(examples))
    ]
    over_documents = dataclasses.replace(estimate(shares(gained, examples)), values=())
    if over_documents.low == over_documents.high and len(examples) < FEWEST_ALIKE:
        over_documents = dataclasses.replace(over_documents, low=None, high=None)
    return Difference(over_seeds, over_documents)


def choose_reference(names: Sequence[str], wanted: str | None, usual: str) -> str:
    """The encoding that the others are held against: the wanted, else the usual one, else the first.

    Raises:
        ArgumentError: none at all, or the wanted is not among them.
    """
    if not names:
        raise ArgumentError("no run is finished yet; there is nothing to summarise")
    if wanted not in (None, *names):
        raise ArgumentError(f"the reference {wanted!r} is not among those to run, {', '.join(names)}; add it to them")
    if wanted is not None:
        return wanted
    return usual if usual in names else names[0]


def runs_of(
    settings: SpecT, encodings: Sequence[str], seeds: int, *, reference: str | None, require: Callable[[str], object]
) -> list[SpecT]:
    """A run for every encoding and seed; all of a seed first, so that a whole comparison is there early.

    Raises:
        ArgumentError: what ``require`` raises of a name, none at all, no seed, or a reference not among them.
    """
    for name in encodings:
        require(name)
    if not encodings or seeds < 1:
        raise ArgumentError(f"expected at least one encoding and one seed, got {list(encodings)} and {seeds}")
    choose_reference(encodings, reference, "")
    return [
        dataclasses.replace(settings, encoding=name, seed=seed)
        for seed in range(seeds)
        for name in dict.fromkeys(encodings)
    ]
