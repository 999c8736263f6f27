"""Lengths in plain words, shared by the page and the terminal."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from posembed.report.words import number

if TYPE_CHECKING:
    from posembed.lab.questions.lengths import LengthRow, LengthSummary
    from posembed.statistics import Estimate

HOLDS = 1.02
"""An encoding holds if its same-token perplexity past the training length is never above this many times its own
at the training length."""
REACHES = 0.05
"""A passage seen before was used if the loss of its repetition is lower by this many nats a token (5 % in
perplexity). Models that cannot reach it measure up to 0.02, by chance."""


@dataclass(frozen=True)
class Verdict:
    kind: Literal["holds", "worse", "ends", "failed", "untested"]
    text: str


def verdict(row: LengthRow, summary: LengthSummary) -> Verdict:
    """What became of an encoding past its training length."""
    if not row.seeds:
        return Verdict("failed", _failed(row))
    end = last_position(row, summary)
    if end is not None:
        return Verdict("ends", f"ends at {end:,}")
    worst = worst_ratio(row, summary)
    if worst is None:
        return Verdict("untested", "nothing to compare")
    ratio, length = worst
    if ratio <= HOLDS:
        return Verdict("holds", "holds")
    where = "" if length == max(summary.test_lengths) else f" at {length:,}"
    return Verdict("worse", f"{worse_by(ratio)}{where}")


def _failed(row: LengthRow) -> str:
    steps = re.findall(r"at step (\d+)", " ".join(row.failures))
    return f"failed at step {', '.join(dict.fromkeys(steps))}" if steps else "failed"


def last_position(row: LengthRow, summary: LengthSummary) -> int | None:
    """Where an encoding ends, if it has no position at some tested length. A table is as long as the training."""
    there = [length for length, value in row.same_tokens.items() if value is not None]
    if not row.seeds or len(there) == len(summary.test_lengths):
        return None
    return max([summary.train_length, *there])


def longer_ratios(row: LengthRow, summary: LengthSummary) -> dict[int, Estimate]:
    """The ratios to an encoding's own perplexity at ``base_length``, at the lengths past the training length."""
    return {length: ratio for length, ratio in row.ratio.items() if ratio is not None and length > summary.train_length}


def worst_ratio(row: LengthRow, summary: LengthSummary) -> tuple[float, int] | None:
    """The highest of ``longer_ratios`` and its length; what is not a number counts as infinite."""
    ratios = [
        (math.inf if math.isnan(estimate.mean) else estimate.mean, length)
        for length, estimate in longer_ratios(row, summary).items()
    ]
    return max(ratios, default=None)


def reach(row: LengthRow, summary: LengthSummary) -> int | None:
    """The most tokens, of those probed, that may stand between a passage and its repetition for the first to be
    used: there and at every smaller gap. None where it was not used at all."""
    reached = None
    for gap in summary.gaps:
        gain = row.repeat_gain.get(gap)
        if gain is None or not gain.mean >= REACHES:  # not a number is not a gain
            break
        reached = gap
    return reached


def reach_in_words(row: LengthRow, summary: LengthSummary) -> str:
    """ "64", "256+", "under 32"; empty where nothing was measured."""
    if not row.seeds or not summary.gaps:
        return ""
    reached = reach(row, summary)
    if reached is None:
        return f"under {min(summary.gaps):,}"
    return f"{reached:,}+" if reached == max(summary.gaps) else f"{reached:,}"


def best_first(summary: LengthSummary) -> list[LengthRow]:
    """The rows by same-token perplexity at the longest length; those that end come after, the failed last."""

    def key(row: LengthRow) -> tuple[bool, bool, float]:
        there = [value.mean for value in row.same_tokens.values() if value is not None]
        last = there[-1] if there else math.inf
        return not row.seeds, last_position(row, summary) is not None, last if math.isfinite(last) else math.inf

    return sorted(summary.rows, key=key)


def times(ratio: float) -> str:
    """1.34, 5.9, 21, 250: a ratio for a sentence, where large ones need no decimals."""
    if ratio < 1.995 or ratio >= 999.5:
        return number(ratio)
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def worse_by(ratio: float) -> str:
    return f"{(ratio - 1) * 100:.0f}% worse" if ratio < 1.995 else f"{times(ratio)} times worse"
