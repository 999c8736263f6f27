"""The look that all figures share: colours, sizes, and one style per name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Found by search: any two differ by at least 27 (CIE76), also for viewers without red, green or blue cones (Machado et
# al. 2009), and each is dark enough for text on white. A dark page has its own colours (report/page.css).
INK, MUTED, RULE, PAPER = "#1c1c1f", "#6b6b70", "#d9d9de", "#fffffe"
SERIES = ("#0340cb", "#711902", "#028753", "#c80d96", "#927209", "#3b3540")
MARKERS = "os^Dvp"
DOTS = (0, (2, 3))
"""The dash pattern of lines that mark a value."""

WIDTH = 440
"""The width of every figure, in points (text is 12 high). A phone shows about 0.8 pixels per point."""
TEXT = 12
LETTER = 0.62 * TEXT
"""The width of a letter in a wide font, which some readers' systems use."""
MINUS = "\N{MINUS SIGN}"
LONGEST = 28
"""The largest number of letters of a name at the end of a line."""


@dataclass(frozen=True)
class Style:
    """A name's style in every figure: colour, marker, and dashes if it has a suffix or shares its colour."""

    index: int
    dashed: bool = False
    baseline: bool = False
    """Whether the name's line is grey and dotted."""

    @property
    def colour(self) -> str:
        return MUTED if self.baseline else SERIES[self.index]

    @property
    def line(self) -> str:
        return ":" if self.baseline else "--" if self.dashed else "-"


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Assigns styles to names. If there are more names than colours, the colours repeat with dashes."""
    parts = {name: (name, "", "") if "/" in name else name.partition("+") for name in names}
    bases = list(dict.fromkeys(base for base, _, _ in parts.values()))
    drawn = {}
    for name, (base, _, suffixes) in parts.items():
        again, index = divmod(bases.index(base), len(SERIES))
        drawn[name] = Style(index, dashed=bool(suffixes) or again > 0)
    return drawn


def shortened(name: str, units: float = LONGEST * LETTER) -> str:
    """Returns a name at most this wide, in points, on one line. A long name, such as a path, loses its beginning."""
    name, letters = " ".join(name.split()), max(int(units / LETTER), 2)
    return name if len(name) <= letters else f"…{name[1 - letters :]}"
