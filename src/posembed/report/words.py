"""Numbers and lists in words, shared by all pages and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.runs.spec import TrainingSpec


class HasSeeds(Protocol):
    """A row of a summary: of which seeds it has results."""

    @property
    def seeds(self) -> Sequence[int]: ...


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


def called(encoding: str) -> str:
    """An encoding's name within a sentence, where "none" would be read as a word."""
    return f"“{encoding}”" if encoding.partition("+")[0] == "none" else encoding


def listed(things: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)


def model_size(spec: TrainingSpec) -> str:
    """ "3 layers, width 96, 4 heads", "1 layer, width 32, 1 head"."""
    layers = "1 layer" if spec.layers == 1 else f"{spec.layers} layers"
    heads = "1 head" if spec.heads == 1 else f"{spec.heads} heads"
    return f"{layers}, width {spec.width}, {heads}"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def runs_of_each(rows: Sequence[HasSeeds]) -> str:
    """ "3 runs of each", "1 to 3 runs of each", "one run of each"; of those that have a result."""
    counts = sorted({len(row.seeds) for row in rows if row.seeds})
    if counts in ([], [1]):
        return "one run of each"
    return f"{counts[0]} runs of each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs of each"
