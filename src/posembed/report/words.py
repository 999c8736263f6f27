"""Numbers and lists as words, shared by all pages and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.question import Row
    from posembed.lab.runs.spec import TrainingSpec

MINUS = "\N{MINUS SIGN}"


def number(value: float) -> str:
    """Formats a perplexity or a ratio: 3.54, 132.4, 21,900, 2e7."""
    if math.isinf(value):
        return "∞"
    if value >= 99_999.5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def signed(value: float, digits: int = 3) -> str:
    """Formats a difference: +0.012, −0.004, 0.000."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def interval(estimate: Estimate | None, write: Callable[[float], str] = number) -> str:
    """Formats an interval as "3.50–3.58", or with "to" if an end has a sign; empty if it is unknown."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    low, high = write(estimate.low), write(estimate.high)
    return f"{low}\N{EN DASH}{high}" if low[0].isdigit() and high[0].isdigit() else f"{low} to {high}"


def share_interval(estimate: Estimate | None, digits: int = 1) -> str:
    """Formats the interval of a share in percent, limited to 0 and 100."""
    return interval(estimate, lambda share: f"{100 * min(max(share, 0.0), 1.0):.{digits}f}")


def up_to(largest: int | None, tested: Sequence[int]) -> str:
    """Formats the largest size that passes a test: "64", "256+" for the largest tested, "under 32" for none."""
    if largest is None:
        return f"under {min(tested):,}"
    return f"{largest:,}+" if largest == max(tested) else f"{largest:,}"


def called(encoding: str) -> str:
    """Returns an encoding's name for a sentence. "none" is quoted, since it would read as a word."""
    return f"“{encoding}”" if encoding.partition("+")[0] == "none" else encoding


def listed(things: Sequence[str]) -> str:
    """Joins names: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)


def names_of(rows: Sequence[Row]) -> str:
    return listed([called(row.name) for row in rows])


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def counted(count: int, noun: str) -> str:
    """Returns "1 layer" or "3 layers"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def model_size(spec: TrainingSpec) -> str:
    """Returns "3 layers, width 96, 4 heads"."""
    return f"{counted(spec.layers, 'layer')}, width {spec.width}, {counted(spec.heads, 'head')}"


def repeated(rows: Sequence[Row]) -> bool:
    """Returns whether any name has several runs, and so an interval over seeds."""
    return any(len(row.seeds) > 1 for row in rows)


def ended_at(row: Row, values: Mapping[int, object], trained: int) -> int | None:
    """Returns the last size that an encoding has positions for, if it has none (a value of None) at some tested one.

    A table is at least as long as the training size ``trained``.
    """
    there = [size for size, value in values.items() if value is not None]
    return max([trained, *there]) if row.seeds and len(there) < len(values) else None


def runs_per(rows: Sequence[Row], what: str = "encoding") -> str:
    """Returns "3 runs per encoding", "1 to 3 runs per encoding" or "one run per encoding", of successful runs."""
    counts = sorted({len(row.seeds) for row in rows if row.seeds})
    if counts in ([], [1]):
        return f"one run per {what}"
    return f"{counts[0]} runs per {what}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs per {what}"


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns one sentence per name with failed runs."""
    return [
        f"{'A run' if row.seeds else 'Training'} with {called(row.name)} failed"
        f"{' and is left out' if row.seeds else ''} ({row.failures[0]})."
        for row in rows
        if row.failures
    ]


def not_drawn(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence on the names that a figure leaves out, if there are any."""
    failed = [row for row in rows if not row.seeds]
    return [f"Not drawn, since training failed: {names_of(failed)}."] if failed else []
