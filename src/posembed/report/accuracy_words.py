"""Accuracies and their differences in words, shared by the pages and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posembed.report.words import called, interval, listed

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


def share_interval(estimate: Estimate | None) -> str:
    """The interval of a share in percent, without what Student's t adds beyond 0 and 100."""
    return interval(estimate, lambda share: percent(min(max(share, 0.0), 1.0)))


def accuracy(estimate: Estimate) -> str:
    """ "97.4%", with its interval where one is known."""
    known = share_interval(estimate)
    return f"{percent(estimate.mean)}%" + (f" ({known})" if known else "")


def compared(name: str, difference: Difference, reference: str, documents: str) -> str:
    """A sentence: is one encoding better than the reference? documents: what was held out, such as "images"."""
    gained, against = difference.over_seeds.mean, called(reference)
    over_documents = f"{interval(difference.over_documents, points) or 'unknown'} over {documents}"
    if difference.over_seeds.low is None:
        return (
            f"{called(name)} against {against}: {points(gained)} points in a single run of each (95% interval "
            f"{over_documents}; over seeds none is known)."
        )
    if not difference.told:
        lead = f"{called(name)} cannot be told from {against}: {points(gained)} points"
    else:
        lead = f"{called(name)} is {better_or_worse(difference)} than {against}: {points(gained)} points"
    return f"{lead} (95% intervals {interval(difference.over_seeds, points)} over seeds, {over_documents})."


def better_or_worse(difference: Difference) -> str:
    return "better" if difference.over_seeds.mean > 0 else "worse"


def in_short(differences: Mapping[str, Difference], reference: str) -> list[str]:
    """The same of several encodings, with the wider of each one's intervals: what is better, worse, not told."""
    if any(of.over_seeds.low is None for of in differences.values()):
        listed_all = listed([_one_in_short(name, of) for name, of in differences.items()])
        return [f"Others against {called(reference)}: {listed_all}."]
    groups: dict[str, list[str]] = {"Better": [], "Worse": [], f"Not to be told from {called(reference)}": []}
    better, worse, neither = groups.values()
    for name, of in differences.items():
        group = neither if not of.told else better if of.over_seeds.mean > 0 else worse
        group.append(_one_in_short(name, of))
    return [f"{verdict}: {listed(group)}." for verdict, group in groups.items() if group]


def _one_in_short(name: str, difference: Difference) -> str:
    known = interval(wider(difference), points)
    return f"{called(name)} {points(difference.over_seeds.mean)}" + (f" ({known})" if known else "")


def wider(difference: Difference) -> Estimate:
    """The interval that says less."""

    def width(estimate: Estimate) -> float:
        return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low

    return max(difference.over_seeds, difference.over_documents, key=width)
