"""Numbers and lists in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

MINUS = "\N{MINUS SIGN}"
SENTENCES, CAUSAL, MASKED = "sentence encoders", "causal language models", "masked language models"
"""The kinds of text models."""


def number(value: float) -> str:
    """Formats a perplexity or a ratio: 3.54, 132.4, 21,900, 2e7."""
    if math.isinf(value):
        return "∞"
    if value >= 99_999.5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    text = f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"
    return text.replace("-", MINUS)


def brief(text: object, most: int = 160) -> str:
    """Returns a text on one line. Shortens it to ``most`` characters, after a whole word if possible, and adds "…"."""
    line = " ".join(str(text).split())
    if len(line) <= most:
        return line
    return f"{line[:most].rpartition(' ')[0] or line[: most - 1]}…"


def last_line(error: BaseException) -> str:
    """Returns the last nonblank line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return brief(lines[-1] if lines else type(error).__name__)


def amount(count: int, what: str) -> str:
    """Formats a number of things: "1 row", "1,024 rows"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(things: Iterable[str], last: str = "and") -> str:
    """Joins names: "a", "a and b", "a, b and c"; empty for none."""
    *before, end = [*things] or [""]
    return f"{', '.join(before)} {last} {end}" if before else end


def called(encoding: str) -> str:
    """Returns an encoding's name for use in a sentence. Puts "none" and names with a comma in quotation marks."""
    return f"“{encoding}”" if encoding.partition("+")[0] == "none" or ", " in encoding else encoding


def least(*numbers: int | None) -> int | None:
    """Returns the smallest number, ignoring None; None if there is no number."""
    return min((number for number in numbers if number is not None), default=None)


def signed(value: float, digits: int = 3) -> str:
    """Formats a difference: +0.012, −0.004, 0.000."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def loss_number(value: float) -> str:
    """Formats a loss: 1.725."""
    return f"{value:.3f}".replace("-", MINUS)


def percent(share: float) -> str:
    """Formats a share for a column of percentages: 97.4. The ends of an interval are limited to 0 and 100."""
    return f"{100 * min(max(share, 0.0), 1.0):.1f}"


def up_to(largest: int | None, tested: Sequence[int]) -> str:
    """Formats the largest size that passes a test: "64", "256+" if it is the largest tested, "under 32" for None."""
    if largest is None:
        return f"under {min(tested):,}"
    return f"{largest:,}+" if largest == max(tested) else f"{largest:,}"


def part(share: float) -> str:
    """Formats a share with two significant digits: .0065 as ".65%", -.12 as "−12%"."""
    value = abs(100 * share)
    if value < 0.005:
        return "0%"
    text = f"{value:.2f}".lstrip("0") if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
    return f"{MINUS if share < 0 else ''}{text}%"


def milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3f}" if value < 0.995 else f"{value:.2f}" if value < 99.5 else f"{value:,.0f}"


def in_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1023.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
