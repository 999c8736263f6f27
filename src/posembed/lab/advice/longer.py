"""What to do with a checkpoint whose table ends before the text: chunk the text, resize the table, or fine-tune.

Chunks of the old length cost nothing, so they are recommended unless a measurement shows that a longer table is
significantly better than the best use of the old length. To add a measurement, add it to longer.json; a test compares
it with the page that it names.
"""

from __future__ import annotations

from dataclasses import dataclass

from posembed.files import data_of
from posembed.words import signed

OWN = ("keep", "chunk", "resize", "tune")
"""The options of an existing checkpoint, the cheapest first."""


@dataclass(frozen=True)
class Finding:
    """A measured difference between two ways to read long texts. option: one way, "resize" or "tune". against: the
    other way. row: the name of the row on ``page``. length: in tokens. difference: positive if ``option`` is better;
    for perplexities a ratio, below 1 if ``option`` is better. half: half the width of the 95% interval.
    """

    option: str
    row: str
    length: int
    difference: float
    half: float
    measure: str
    model: str
    text: str
    page: str
    against: str = "chunks of the original"

    @property
    def is_ratio(self) -> bool:
        return "perplexity" in self.measure

    @property
    def better(self) -> bool:
        return self.difference + self.half < 1 if self.is_ratio else self.difference - self.half > 0

    def __str__(self) -> str:
        what = {"resize": "resized", "tune": "fine-tuned"}[self.option]
        by = f"{signed(self.difference)} ± {self.half:.3f} from"
        if self.is_ratio:
            by = f"{self.difference:.2f} ± {self.half:.2f} times that of"
        return (
            f"{self.model}, {what} to {self.length:,} tokens: {self.measure} {by} {self.against} "
            f"({self.text}; {self.page})"
        )


FINDINGS: dict[str, tuple[Finding, ...]] = {
    kind: tuple(Finding(**found) for found in of_kind) for kind, of_kind in data_of(__file__).items()
}
"""The measurements, by kind of model. Without any, the advice is to resize, and says that nothing was measured."""

(FAR,) = FINDINGS.pop("far")
"""What was measured where an answer needs two places that are farther apart than the table is long."""
FAR_APART = "a chunk cannot hold two places that are farther apart than it is long"


def findings(kind: str, *, far: bool = False) -> tuple[Finding, ...]:
    return (*FINDINGS.get(kind, ()), *([FAR] if far else []))


def cheapest(kind: str, *, far: bool = False) -> str:
    """Returns the cheapest option measured to be better than chunks for texts beyond the table; "chunk" if there is
    none, "resize" if nothing was measured. far: as in ``Needs.far_in_texts``."""
    known = findings(kind, far=far)
    better = [each.option for each in known if each.better]
    return min(better, key=OWN.index) if better else "chunk" if known else "resize"
