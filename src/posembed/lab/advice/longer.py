"""What to do with a checkpoint whose table ends before the text: chunk the text, resize the table, or fine-tune.

Rests on measured pages. Chunks of the old length cost nothing, so they are recommended unless a page shows that one of
the others is significantly better. To add a measurement, add a ``Finding``; a test compares it with its page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWN = ("keep", "chunk", "resize", "tune")
"""The options of an existing checkpoint, in the order of what they cost."""


@dataclass(frozen=True)
class Finding:
    """A measured difference from chunks of the original model, with half of its 95% interval; positive is better.

    option: "resize" or "tune". row: the name of the row on the page. length: in tokens. model, text: what it was
    measured with.
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

    @property
    def better(self) -> bool:
        return self.difference - self.half > 0

    def __str__(self) -> str:
        what = {"resize": "resized", "tune": "fine-tuned"}[self.option]
        return (
            f"{self.model}, {what} to {self.length:,} tokens: {self.measure} {signed(self.difference)} ± "
            f"{self.half:.3f} from chunks of the original ({self.text}; {self.page})"
        )


FINDINGS: Mapping[str, tuple[Finding, ...]] = {
    "sentence encoders": (
        Finding(
            "resize", "resized", 2048, 0.013, 0.032, "NDCG@10", "all-MiniLM-L6-v2", "WikiText-2",
            "benchmarks/results/retrieval.md",
        ),
        Finding(
            "tune", "fine-tuned, whole", 1024, -0.016, 0.025, "NDCG@10", "all-MiniLM-L6-v2", "WikiText-2",
            "docs/tune.md",
        ),
    ),
}  # fmt: skip
"""The measurements by kind of model. Kinds without any are resized, and the advice says that nothing was measured."""


def findings(kind: str) -> tuple[Finding, ...]:
    return FINDINGS.get(kind, ())


def cheapest(kind: str) -> str:
    """Returns the option for texts beyond the table: chunks, unless another was measured to be better."""
    better = [each.option for each in findings(kind) if each.better]
    return min(better, key=OWN.index) if better else "chunk" if findings(kind) else "resize"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
