"""The answer, in sentences made from the numbers: what a person came for, before any table."""

from __future__ import annotations

from collections.abc import Callable

from posembed.lab.questions.lengths import LengthRow, LengthSummary, base_length
from posembed.report.lengths.words import (
    best_first,
    last_position,
    longer_ratios,
    reach,
    times,
    verdict,
    worst_ratio,
)
from posembed.report.words import called, interval, listed, number, runs_of_each


def answer(summary: LengthSummary) -> list[str]:
    """Two paragraphs: who holds past the training length; who was best at the longest, and whether that is reach.

    Never more than the numbers bear: a single run is said to be one, and an interval is given where one is known.
    """
    paragraphs = ((_holding, _worse, _ending, _failing), (_best, _reaching))
    texts = [" ".join(sentence for part in parts if (sentence := part(summary))) for parts in paragraphs]
    return [text for text in texts if text]


def _rows(summary: LengthSummary, kind: str) -> list[LengthRow]:
    return [row for row in best_first(summary) if verdict(row, summary).kind == kind]


def _names(rows: list[LengthRow]) -> str:
    return listed([called(row.encoding) for row in rows])


def _grouped(rows: list[LengthRow], key: Callable[[LengthRow], int]) -> dict[int, list[LengthRow]]:
    """By their keys, the largest first."""
    keys = sorted({key(row) for row in rows}, reverse=True)
    return {value: [row for row in rows if key(row) == value] for value in keys}


def _holding(summary: LengthSummary) -> str:
    trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
    if not any(row.seeds for row in summary.rows):
        return ""
    if longest <= trained:
        return f"Nothing was tested past the training length of {trained:,} tokens."
    if base is None:
        return f"Nothing was tested at the training length of {trained:,} tokens, so no ratio to it is known."
    rows = _rows(summary, "holds")
    if not rows:
        return f"Past the training length of {trained:,} tokens, no encoding holds."
    ratios = [number(longer_ratios(row, summary)[longest].mean) for row in rows]
    if len(set(ratios)) == 1:
        ratios = ratios[:1]
    return (
        f"Past the training length of {trained:,} tokens, {_names(rows)} {'hold' if len(rows) > 1 else 'holds'}: "
        f"with {longest:,} tokens of context, the perplexity of the same tokens is {listed(ratios)} times "
        f"what it is with {base:,}."
    )


def _worse(summary: LengthSummary) -> str:
    longest, base = max(summary.test_lengths), base_length(summary)
    rows = [(worst, row) for row in _rows(summary, "worse") if (worst := worst_ratio(row, summary)) is not None]
    parts = [
        f"{times(ratio)} times with {called(row.encoding)}{'' if length == longest else f' (at {length:,})'}"
        for (ratio, length), row in sorted(rows, key=lambda item: item[0])
    ]
    if not parts:
        return ""
    if _rows(summary, "holds"):
        return f"It grows to {listed(parts)}."
    return (
        f"With {longest:,} tokens of context, the perplexity of the same tokens grows to {listed(parts)}, from "
        f"what it is with {base:,}."
    )


def _ending(summary: LengthSummary) -> str:
    by_end = _grouped(_rows(summary, "ends"), lambda row: last_position(row, summary) or 0)
    return " ".join(
        f"With {_names(rows)} there is no position past {end:,}: the model stops there." for end, rows in by_end.items()
    )


def _failing(summary: LengthSummary) -> str:
    return " ".join(
        f"{'A run' if row.seeds else 'Training'} with {called(row.encoding)} failed"
        f"{' and is left out' if row.seeds else ''} ({row.failures[0]})."
        for row in summary.rows
        if row.failures
    )


def _best(summary: LengthSummary) -> str:
    """The best at the longest length against the reference, or, where it is that itself, against the second."""
    longest = max(summary.test_lengths)
    there = [(row, value) for row in best_first(summary) if (value := row.same_tokens.get(longest)) is not None]
    if len(there) < 2:
        return ""
    best, ours = there[0]
    rival, theirs = next((pair for pair in there[1:] if pair[0].encoding == summary.reference), there[1])
    lowest = f"The lowest perplexity at {longest:,} is {called(best.encoding)}'s, {number(ours.mean)}"
    second = f"{called(rival.encoding)}'s {number(theirs.mean)}"
    if not interval(ours):
        return (
            f"{lowest}, before {second}; that is from a single run, so no interval is known, and small "
            "differences may be chance."
        )
    lowest += f" (95% interval {interval(ours)}, {runs_of_each(summary.rows)})"
    is_reference = best.encoding == summary.reference
    ratio = (rival if is_reference else best).versus_reference.get(longest)
    if ratio is None:
        return f"{lowest}, before {second}."
    times_as_high = f"{number(ratio.mean)} times"
    compared = f"; {second} is {times_as_high} that" if is_reference else f": {times_as_high} {second}"
    if ratio.low is None or ratio.high is None:
        return f"{lowest}{compared}."
    apart = ratio.low > 1 or ratio.high < 1
    untold = "" if apart else ", so the two cannot be told apart"
    return f"{lowest}{compared} (paired interval {interval(ratio)}{untold})."


def _reaching(summary: LengthSummary) -> str:
    """Of those that hold; where none does, of those that get worse."""
    rows = _rows(summary, "holds") or _rows(summary, "worse")
    if not rows or not summary.gaps:
        return ""
    lead = "Low perplexity at length is not reach: in the repeat probe,"
    by_reach = _grouped(rows, lambda row: reach(row, summary) or 0)
    farthest, nearest = max(by_reach), min(summary.gaps)
    nobody = "none of them" if len(rows) > 1 else f"{called(rows[0].encoding)} never"
    if farthest == 0:
        return f"{lead} {nobody} used a passage even {nearest:,} tokens back."
    if farthest <= summary.train_length:
        return f"{lead} {nobody} used a passage more than {farthest:,} tokens back."
    used = [_used(those, distance, nearest) for distance, those in by_reach.items()]
    return f"{lead} {'; '.join(used)}."


def _used(rows: list[LengthRow], distance: int, nearest: int) -> str:
    if distance == 0:
        return f"{_names(rows)} did not even {nearest:,} tokens back"
    return f"{_names(rows)} used a passage {distance:,} tokens back"
