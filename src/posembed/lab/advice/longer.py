"""What to do with a checkpoint whose table ends before the text: chunk the text, resize the table, or fine-tune.

Rests on measured pages. Chunks of the old length cost nothing, so they are recommended unless a page shows that one of
the others is significantly better than the best way to read with the old length. To add a measurement, add a
``Finding``; a test compares it with its page.
"""

from __future__ import annotations

from dataclasses import dataclass

from posembed.files import data_of
from posembed.words import signed

OWN = ("keep", "chunk", "resize", "tune")
"""The options of an existing checkpoint, in the order of what they cost."""


@dataclass(frozen=True)
class Finding:
    """A measured difference between two ways to read long texts, with half of its 95% interval. option: one way,
    "resize" or "tune". against: the other. row: the row's name on ``page``. length: in tokens. difference: positive if
    ``option`` is better; for perplexities, the ratio, below 1 if it is better. model, text: what it was measured with.
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
"""The measurements by kind of model. Kinds without any are resized, and the advice says that nothing was measured."""

(FAR,) = FINDINGS.pop("far")
"""What was measured where an answer needs two places that are farther apart than the table is long."""


def findings(kind: str, *, far: bool = False) -> tuple[Finding, ...]:
    return (*FINDINGS.get(kind, ()), *([FAR] if far else []))


def cheapest(kind: str, *, far: bool = False) -> str:
    """Returns the option for texts beyond the table: chunks, unless another was measured to be better. far: whether
    an answer needs places that are far apart."""
    known = findings(kind, far=far)
    better = [each.option for each in known if each.better]
    return min(better, key=OWN.index) if better else "chunk" if known else "resize"
