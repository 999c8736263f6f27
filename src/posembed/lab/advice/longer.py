"""What to do with a checkpoint whose table ends before the text: chunk the text, resize the table, or fine-tune.

Rests on measured pages. Chunks of the old length cost nothing, so they are recommended unless a page shows that one of
the others is significantly better than the best way to read with the old length. To add a measurement, add a
``Finding``; a test compares it with its page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from posembed.words import CAUSAL, MASKED, SENTENCES

OWN = ("keep", "chunk", "resize", "tune")
"""The options of an existing checkpoint, in the order of what they cost."""


@dataclass(frozen=True)
class Finding:
    """A measured difference from another way to read long texts, with half of its 95% interval.

    option: "resize" or "tune". row: the name of the row on the page. length: in tokens. difference: positive is better;
    of a perplexity, the ratio, so less than 1 is better. model, text: what it was measured with. against: the other
    way.
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


SLIDING = "the same fine-tuning at the old length, in sliding windows"
FINDINGS: Mapping[str, tuple[Finding, ...]] = {
    SENTENCES: (
        Finding(
            "resize", "resized", 2048, 0.013, 0.032, "NDCG@10", "all-MiniLM-L6-v2", "WikiText-2",
            "benchmarks/results/retrieval.md",
        ),
        Finding(
            "tune", "fine-tuned, whole", 2048, -0.025, 0.052, "NDCG@10", "all-MiniLM-L6-v2", "WikiText-2",
            "docs/tune.md",
        ),
    ),
    CAUSAL: (
        Finding(
            "tune", "causal, perplexity at 128", 128, 1.03, 0.01, "perplexity",
            "a small model of bytes with 64 positions", "WikiText-2", "docs/tune.md", SLIDING,
        ),
    ),
    MASKED: (
        Finding(
            "tune", "masked, pseudo-perplexity at 128", 128, 1.13, 0.03, "pseudo-perplexity",
            "a small model of bytes with 64 positions", "WikiText-2", "docs/tune.md", SLIDING,
        ),
    ),
}  # fmt: skip
"""The measurements by kind of model. Kinds without any are resized, and the advice says that nothing was measured."""

FAR = Finding(
    "tune", "definitions, looked up from afar: right answers at 256", 256, 0.514, 0.049, "right answers",
    "a small BERT with 64 positions", "generated texts", "docs/tune.md", "the same fine-tuning on chunks",
)  # fmt: skip
"""What was measured where an answer needs two places that are farther apart than the table is long."""


def findings(kind: str, *, far: bool = False) -> tuple[Finding, ...]:
    return (*FINDINGS.get(kind, ()), *([FAR] if far else []))


def cheapest(kind: str, *, far: bool = False) -> str:
    """Returns the option for texts beyond the table: chunks, unless another was measured to be better. far: whether
    an answer needs places that are far apart."""
    known = findings(kind, far=far)
    better = [each.option for each in known if each.better]
    return min(better, key=OWN.index) if better else "chunk" if known else "resize"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
