"""What became of each encoding past the training length, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from posembed.lab.questions.lengths import LengthRow, LengthSummary, base_length
from posembed.report.words import (
    called,
    capitalised,
    ended_at,
    failures,
    interval,
    listed,
    names_of,
    number,
    runs_per,
    up_to,
)
from posembed.statistics import INTERVAL, Estimate

HOLDS = 1.02
"""An encoding holds if its same-token perplexity past the training length is never above this many times its own at
the training length."""
REACHES = 0.05
"""An earlier passage was used if the loss of its repetition is lower by this many nats per token (5% of perplexity).
Models that cannot reach it measure up to 0.02, by chance."""


@dataclass(frozen=True)
class Verdict:
    kind: Literal["holds", "worse", "ends", "failed", "untested"]
    text: str


def verdict(row: LengthRow, summary: LengthSummary) -> Verdict:
    """Returns what became of an encoding past its training length."""
    if not row.seeds:
        steps = re.findall(r"at step (\d+)", " ".join(row.failures))
        return Verdict("failed", f"failed at step {', '.join(dict.fromkeys(steps))}" if steps else "failed")
    end = last_position(row, summary)
    if end is not None:
        return Verdict("ends", f"ends at {end:,}")
    worst = worst_ratio(row, summary)
    if worst is None:
        return Verdict("untested", "not tested")
    ratio, length = worst
    if ratio <= HOLDS:
        return Verdict("holds", "holds")
    where = "" if length == max(summary.test_lengths) else f" at {length:,}"
    by = f"{(ratio - 1) * 100:.0f}%" if ratio < 1.995 else f"{times(ratio)} times"
    return Verdict("worse", f"{by} worse{where}")


def last_position(row: LengthRow, summary: LengthSummary) -> int | None:
    return ended_at(row, row.same_tokens, summary.train_length)


def longer_ratios(row: LengthRow, summary: LengthSummary) -> dict[int, Estimate]:
    """Returns the ratios to the encoding's own perplexity at ``base_length``, past the training length."""
    return {n: ratio for n, ratio in row.ratio.items() if ratio is not None and n > summary.train_length}


def worst_ratio(row: LengthRow, summary: LengthSummary) -> tuple[float, int] | None:
    """Returns the highest of ``longer_ratios`` and its length. NaN counts as infinite."""
    ratios = [
        (math.inf if math.isnan(estimate.value) else estimate.value, length)
        for length, estimate in longer_ratios(row, summary).items()
    ]
    return max(ratios, default=None)


def reach(row: LengthRow, summary: LengthSummary) -> int | None:
    """Returns the largest probed gap at which, as at every smaller one, an earlier passage was used; else None."""
    reached = None
    for gap in summary.gaps:
        gain = row.repeat_gain.get(gap)
        if gain is None or not gain.value >= REACHES:  # NaN is not a gain
            break
        reached = gap
    return reached


def reach_in_words(row: LengthRow, summary: LengthSummary) -> str:
    """Returns "64", "256+" or "under 32"; empty if nothing was measured."""
    return up_to(reach(row, summary), summary.gaps) if row.seeds and summary.gaps else ""


def best_first(summary: LengthSummary) -> list[LengthRow]:
    """Sorts the rows by same-token perplexity at the longest length; then those that end, then those that failed."""

    def key(row: LengthRow) -> tuple[bool, bool, float]:
        there = [value.value for value in row.same_tokens.values() if value is not None]
        last = there[-1] if there else math.inf
        return not row.seeds, last_position(row, summary) is not None, last if math.isfinite(last) else math.inf

    return sorted(summary.rows, key=key)


def times(ratio: float) -> str:
    """Formats a ratio for a sentence, large ones without decimals: 1.34, 5.9, 21, 250."""
    if ratio < 1.995 or ratio >= 999.5:
        return number(ratio)
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def answer(summary: LengthSummary) -> list[str]:
    """Returns two paragraphs: who holds past the training length; who is best at the longest, and how far it reaches.

    A single run is reported as one, and an interval is given if it is known.
    """
    paragraphs = ((_holding, _worse, _ending, _failing), (_best, _reaching))
    texts = [" ".join(sentence for part in parts if (sentence := part(summary))) for parts in paragraphs]
    return [text for text in texts if text]


def _rows(summary: LengthSummary, kind: str) -> list[LengthRow]:
    return [row for row in best_first(summary) if verdict(row, summary).kind == kind]


def _grouped(rows: list[LengthRow], key: Callable[[LengthRow], int]) -> dict[int, list[LengthRow]]:
    """Groups rows by key, largest key first."""
    return {value: [row for row in rows if key(row) == value] for value in sorted(map(key, rows), reverse=True)}


def _holding(summary: LengthSummary) -> str:
    trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
    if not any(row.seeds for row in summary.rows):
        return ""
    if longest <= trained:
        return f"Nothing was tested past the training length of {trained:,} tokens."
    if base is None:
        return f"Nothing was tested at the training length of {trained:,} tokens, so its ratios are unknown."
    rows = _rows(summary, "holds")
    if not rows:
        return f"Past the training length of {trained:,} tokens, no encoding holds."
    ratios = [number(longer_ratios(row, summary)[longest].value) for row in rows]
    if len(set(ratios)) == 1:
        ratios = ratios[:1]
    return (
        f"Past the training length of {trained:,} tokens, {names_of(rows)} {'hold' if len(rows) > 1 else 'holds'}: "
        f"with {longest:,} tokens of context, the perplexity of the same tokens is {listed(ratios)} times "
        f"the perplexity with {base:,}."
    )


def _worse(summary: LengthSummary) -> str:
    longest, base = max(summary.test_lengths), base_length(summary)
    rows = [(worst, row) for row in _rows(summary, "worse") if (worst := worst_ratio(row, summary)) is not None]
    parts = [
        f"{times(ratio)} times with {called(row.name)}{'' if length == longest else f' (at {length:,})'}"
        for (ratio, length), row in sorted(rows, key=lambda item: item[0])
    ]
    if not parts:
        return ""
    if _rows(summary, "holds"):
        return f"It grows to {listed(parts)}."
    return (
        f"With {longest:,} tokens of context, the perplexity of the same tokens grows to {listed(parts)}, relative to "
        f"its value with {base:,}."
    )


def _ending(summary: LengthSummary) -> str:
    by_end = _grouped(_rows(summary, "ends"), lambda row: last_position(row, summary) or 0)
    return " ".join(
        f"{capitalised(names_of(rows))} {'have' if len(rows) > 1 else 'has'} no position past {end:,}, so the model "
        "stops there."
        for end, rows in by_end.items()
    )


def _failing(summary: LengthSummary) -> str:
    return " ".join(failures(summary.rows))


def _best(summary: LengthSummary) -> str:
    """Compares the best at the longest length with the reference, or with the second best if it is the reference."""
    longest = max(summary.test_lengths)
    there = [(row, value) for row in best_first(summary) if (value := row.same_tokens.get(longest)) is not None]
    if len(there) < 2:
        return ""
    best, ours = there[0]
    rival, theirs = next((pair for pair in there[1:] if pair[0].name == summary.reference), there[1])
    lowest = f"The lowest perplexity at {longest:,} is that of {called(best.name)}, {number(ours.value)}"
    second = f"that of {called(rival.name)} is {number(theirs.value)}"
    if not interval(ours):
        return f"{lowest}; {second}. There is one run per encoding, so no interval; small differences may be chance."
    lowest += f" ({INTERVAL} {interval(ours)}, {runs_per(summary.rows)})"
    is_reference = best.name == summary.reference
    ratio = (rival if is_reference else best).versus_reference.get(longest)
    if ratio is None:
        return f"{lowest}; {second}."
    if is_reference:
        compared = f"{lowest}; {second}, {number(ratio.value)} times as high"
    else:
        compared = f"{lowest}, {number(ratio.value)} times that of {called(rival.name)}, {number(theirs.value)}"
    if ratio.low is None or ratio.high is None:
        return f"{compared}."
    significant = "" if ratio.side_of(1) in ("below", "above") else ": not significant"
    return f"{compared} (paired interval {interval(ratio)}{significant})."


def _reaching(summary: LengthSummary) -> str:
    """Reports the reach of those that hold, or else of those that get worse."""
    rows = _rows(summary, "holds") or _rows(summary, "worse")
    if not rows or not summary.gaps:
        return ""
    lead = "A low perplexity does not mean that far text is used: in the repeat probe,"
    by_reach = _grouped(rows, lambda row: reach(row, summary) or 0)
    farthest, nearest = max(by_reach), min(summary.gaps)
    not_used = f"{names_of(rows)} did not use a passage"
    if farthest == 0:
        return f"{lead} {not_used} even {nearest:,} tokens back."
    if farthest <= summary.train_length:
        return f"{lead} {not_used} more than {farthest:,} tokens back."
    used = [
        f"{names_of(those)} used a passage {distance:,} tokens back"
        if distance
        else f"{names_of(those)} did not use one even {nearest:,} tokens back"
        for distance, those in by_reach.items()
    ]
    return f"{lead} {'; '.join(used)}."
