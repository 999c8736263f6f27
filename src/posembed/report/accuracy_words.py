"""Accuracies and their differences in words, shared by the pages and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posembed.report.words import called, interval

if TYPE_CHECKING:
    from posembed.lab.questions.accuracy import Difference
    from posembed.statistics import Estimate


def percent(share: float) -> str:
    """A share as it stands in a column of percent: 97.4."""
    return f"{100 * share:.1f}"


def points(share: float) -> str:
    """A difference of shares in points of percent, with its sign: +0.2."""
    written = f"{100 * share:+.1f}"
    return "0.0" if float(written) == 0 else written.replace("-", "\N{MINUS SIGN}")


def accuracy(estimate: Estimate) -> str:
    """ "97.4%", with its interval where one is known."""
    known = interval(estimate, percent)
    return f"{percent(estimate.mean)}%" + (f" ({known})" if known else "")


def intervals(difference: Difference, documents: str) -> str:
    """Both intervals of a difference. documents: what was held out, such as "documents"."""
    over_documents = f"{interval(difference.over_documents, points)} over {documents}"
    over_seeds = interval(difference.over_seeds, points)
    if not over_seeds:
        return f"95% interval {over_documents}; of seeds none is known, from a single run"
    return f"95% intervals {over_seeds} over seeds, {over_documents}"


def compared(name: str, difference: Difference, reference: str, documents: str) -> str:
    """A sentence: is one encoding better than the reference?"""
    gained = difference.over_seeds.mean
    if difference.told:
        verdict = "better than" if gained > 0 else "worse than"
        lead = f"{called(name)} is {verdict} {called(reference)} by {points(abs(gained)).removeprefix('+')} points"
    else:
        lead = f"{called(name)} cannot be told from {called(reference)}: {points(gained)} points"
    return f"{lead} ({intervals(difference, documents)})."


def runs_in_words(seeds: Sequence[Sequence[int]]) -> str:
    """ "5 runs of each", from the seeds of each encoding; those without a result do not count."""
    counts = sorted({len(of) for of in seeds if of})
    if counts in ([], [1]):
        return "one run of each"
    return f"{counts[0]} runs of each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs of each"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
