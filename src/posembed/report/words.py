"""Numbers and lists as words, shared by all pages and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from posembed.statistics import INTERVAL, Estimate
from posembed.words import MINUS, called, listed, number, percent, signed, up_to  # noqa: F401

if TYPE_CHECKING:
    from posembed.lab.found import Row

OUTCOMES = {
    "better": ("is", "are", "significantly better than {}"),
    "worse": ("is", "are", "significantly worse than {}"),
    "not significant": ("is", "are", "not significantly different from {}"),
    "equal": ("equals", "equal", "{} on every {unit}"),
    "unknown": ("cannot be", "cannot be", "called better or worse than {}, because not every interval is known"),
}
"""For each outcome: the verb for one name, the verb for several names, and the rest of the sentence, which contains the
reference."""


def interval(estimate: Estimate | None, write: Callable[[float], str] = number) -> str:
    """Formats an interval as "3.50–3.58", or with "to" if an end has a sign; empty if the interval is unknown."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    low, high = write(estimate.low), write(estimate.high)
    return f"{low} to {high}" if {low[0], high[0]} & {"+", "-", MINUS} else f"{low}\N{EN DASH}{high}"


def measured(estimate: Estimate, write: Callable[[float], str] = number) -> str:
    """Formats an estimate, with its interval if known: "3.54 (3.50–3.58)"."""
    known = interval(estimate, write)
    return f"{write(estimate.value)}{f' ({known})' if known else ''}"


def names_of(rows: Iterable[Row]) -> str:
    return listed([called(row.name) for row in rows])


def from_to(texts: Sequence[str]) -> str:
    """Returns the first and the last text: "3.0% to 25%", or "3.0%" if they are the same."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def duration(seconds: float) -> str:
    """Formats a duration for people, at least 1 s: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def by_outcome(reference: str, found: Iterable[tuple[str, str]], unit: str = "text") -> list[str]:
    """Returns one sentence per outcome. ``found``: for each name, a key of OUTCOMES (or "") and the text to list.
    ``unit``: what each value was measured on.

    >>> by_outcome("alibi", [("better", "rope"), ("better", "t5")])
    ['rope and t5 are significantly better than alibi.']
    """
    known, sentences = list(found), []
    for outcome, (singular, plural, compared) in OUTCOMES.items():
        if texts := [text for each, text in known if each == outcome]:
            verb = plural if len(texts) > 1 else singular
            sentences.append(f"{listed(texts)} {verb} {compared.format(reference, unit=unit)}.")
    return sentences


PAIRED = "Differences and ratios are paired by seed."


def certainty(rows: Sequence[Row], of_each: str, how: str = PAIRED) -> str:
    """Returns sentences on the number of runs and the kind of intervals; empty if every run failed. ``how``: how values
    of several runs are combined."""
    counts = sorted({count for row in rows for count in row.counts if count})
    if not counts:
        return ""
    if counts == [1]:
        return f"There is one run per {of_each}, so there are no intervals over seeds; small differences may be chance."
    uneven = len({row.seeds for row in rows if row.seeds}) > 1
    alike = " Means over different seeds cannot be ranked; a comparison uses the seeds that both have." * uneven
    return (
        f"There are {from_to([f'{count}' for count in counts])} runs per {of_each}. Unless stated otherwise, intervals "
        f"are {INTERVAL}s over seeds (Student's t). {how}{alike}"
    )


def failures(rows: Sequence[Row]) -> list[str]:
    failed = [
        f"{len(row.failures)} of {len(row.failures) + row.succeeded} with {called(row.name)} ({row.failures[0]})"
        for row in rows
        if row.failures
    ]
    return [f"Failed runs are left out: {', '.join(failed)}."] if failed else []


def not_drawn(rows: Sequence[Row]) -> list[str]:
    failed = [row for row in rows if not row.seeds]
    return [f"Not drawn because training failed: {names_of(failed)}."] if failed else []
