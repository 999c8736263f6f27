"""What is measured: the unit of a metric, which direction is better, and how its values are compared and written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from posembed.words import MINUS, in_bytes, milliseconds, number, part, percent, signed

Verdict = Literal["better", "worse", "not significant", "equal", "unknown"]

WRITE: dict[str, Callable[[float], str]] = {
    "log": number,
    "share": percent,
    "score": "{:.3f}".format,
    "times": "{:,.0f}".format,
    "part": part,
    "time": lambda seconds: f"{milliseconds(seconds)} ms",
    "bytes": in_bytes,
}
"""How to format values of each kind except "number"."""


@dataclass(frozen=True)
class Metric:
    """A metric, as data.

    Args:
        name: its name in tables, sentences and frames, such as "exact match".
        says: how to read the metric, in a sentence or two.
        better: "low" or "high"; None if neither is better.
        kind: "number", such as a loss; "share", from 0 to 1, written in percent; "score", from 0 to 1, written as
            0.786; "log", the logarithm of what is written, so that a mean is a geometric mean and a difference is a
            ratio; "times", numbers above 0 with an arithmetic mean, compared by their ratio; "part", a share written as
            .65% or 170%; "time", in seconds, written in milliseconds; or "bytes".
        digits: the decimals of a "number"; None means three significant digits.
        near: the decimals of a ratio near 1.
        unit: the unit of what is written, such as "nats per token".
        signed: whether a "number" above 0 is written with its sign.
        table: the title of a table that the metric shares with others; empty for its own table, or the main table.
        missing: what a table says where a run has no value; a mean needs the values of all runs.
        told: whether the answer names its values; the answer always names those of the main metric.
    """

    name: str
    says: str = ""
    better: Literal["low", "high"] | None = "low"
    kind: Literal["number", "share", "score", "log", "times", "part", "time", "bytes"] = "number"
    digits: int | None = 3
    near: int = 2
    unit: str = ""
    signed: bool = False
    told: bool = False
    table: str = ""
    missing: str = "no position"

    @property
    def compared(self) -> bool:
        """Whether values can be compared: one direction is better."""
        return self.better is not None

    @property
    def ratio(self) -> bool:
        """Whether two values are compared by their ratio, and not by their difference."""
        return self.kind in ("log", "times")

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that a mean can have."""
        most = 1.0 if self.kind in ("share", "score") else math.inf
        return 0.0 if self.kind in ("share", "score", "times") else -math.inf, most

    @property
    def same(self) -> float:
        """The comparison of two equal values: 1 for a ratio, 0 for a difference."""
        return 1.0 if self.ratio else 0.0

    def write(self, value: float) -> str:
        """Formats a value."""
        if self.kind == "number":
            text = signed(value, self.digits) if self.digits is not None else f"{value:+.3g}".replace("-", MINUS)
            return text if self.signed else text.removeprefix("+")
        return WRITE[self.kind](value)

    def write_comparison(self, value: float) -> str:
        """Formats a difference or a ratio."""
        if self.ratio:
            return f"{value:.{self.near}f}" if 0 < abs(value - 1) < 0.1 else number(value)
        return signed(100 * value, 1) if self.kind == "share" else signed(value, self.digits or 3)

    def verdict(self, side: Literal["below", "above", "both"] | None) -> Verdict:
        """Returns the verdict of a comparison whose interval lies on this side of ``same``."""
        if side in (None, "both") or self.better is None:
            return "unknown" if side is None else "not significant"
        return "better" if (side == "below") == (self.better == "low") else "worse"
