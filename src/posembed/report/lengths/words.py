"""Results in plain words, shared by the page and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
    return {
        length: ratio for length, ratio in row.ratio.items() if ratio is not None and length > summary.train_length
    }


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


def number(value: float) -> str:
    """A perplexity or a ratio: 3.54, 132.4, 21,900, 2e7."""
    if math.isinf(value):
        return "∞"
    if value >= 99_999.5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def interval(estimate: Estimate | None, write: Callable[[float], str] = number) -> str:
    """ "3.50–3.58", with "to" where a sign would be in the way; empty where none is known."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    low, high = write(estimate.low), write(estimate.high)
    return f"{low}\N{EN DASH}{high}" if low[0].isdigit() and high[0].isdigit() else f"{low} to {high}"


def times(ratio: float) -> str:
    """1.34, 5.9, 21, 250: a ratio for a sentence, where large ones need no decimals."""
    if ratio < 1.995 or ratio >= 999.5:
        return number(ratio)
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def worse_by(ratio: float) -> str:
    return f"{(ratio - 1) * 100:.0f}% worse" if ratio < 1.995 else f"{times(ratio)} times worse"


def called(encoding: str) -> str:
    """An encoding's name within a sentence, where "none" would be read as a word."""
    return f"“{encoding}”" if encoding.partition("+")[0] == "none" else encoding


def listed(things: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)


def runs_of_each(summary: LengthSummary) -> str:
    """ "3 runs of each", "1 to 3 runs of each", "one run of each"; of those that have a result."""
    counts = sorted({len(row.seeds) for row in summary.rows if row.seeds})
    if counts in ([], [1]):
        return "one run of each"
    return f"{counts[0]} runs of each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs of each"
