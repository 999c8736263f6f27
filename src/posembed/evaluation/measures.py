"""Measurements of models: a ``Measurement`` for each kind of model, and a ``Measure`` for each reported number.

To add a measure, add a ``Measure`` to ``MEASUREMENTS``. To add a way to feed a long text, add an entry to ``FITS`` and
the name of its row to ``baselines``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from posembed.evaluation.counts import (
    FITS,
    PASSAGES,
    Counts,
    Tick,
    causal_counts,
    encoder,
    masked_counts,
    retrieval_ranks,
)
from posembed.evaluation.ranking import RANKING_VALUES
from posembed.evaluation.runnable import Kind, Runnable
from posembed.evaluation.texts import Sample
from posembed.statistics import Estimate, estimate, shares

VERSION = 3
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""

ByText = tuple[float, ...] | None
"""One value per text; the mean is the measure, or the logarithm of a perplexity. None if a value is not finite."""

Verdict = Literal["better", "worse", "not significant", "equal", ""]


@dataclass(frozen=True)
class Job:
    """One run of a checkpoint over the first ``length`` tokens of each text, at most ``chunk`` tokens at a time.

    ``length`` and ``chunk`` include special tokens. setting: from ``Measurement.setting``. fit: a key of ``FITS``.
    """

    runnable: Runnable
    sample: Sample
    setting: int
    length: int
    chunk: int
    fit: str

    @property
    def key(self) -> str:
        """A hash of everything that the counts depend on."""
        parts = [VERSION, self.runnable.sha256, self.sample.sha256, self.setting, self.length, self.chunk, self.fit]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def at_once(self) -> int:
        return self.chunk

    @property
    def about(self) -> dict[str, Any]:
        return {"length": self.length, "chunk": self.chunk, "fit": self.fit}

    def count(self, model: nn.Module, tick: Tick) -> dict[str, Tensor]:
        return MEASUREMENTS[self.runnable.kind].count(model, self, tick)

    @property
    def ids(self) -> Tensor:
        """The token ids (N, W) of the texts, without special tokens."""
        return self.sample.ids[:, : self.length - self.sample.specials]

    @property
    def chunks(self) -> Sequence[Tensor]:
        """The chunks of ids that the model reads one by one, without special tokens: (N, chunk), or narrower."""
        return FITS[self.fit](self.ids, self.chunk - self.sample.specials)

    @property
    def tokens(self) -> int:
        queries = len(PASSAGES) * self.setting if self.runnable.kind == "sentences" else 0
        return len(self.ids) * (queries + sum(ids.shape[1] for ids in self.chunks))


@dataclass(frozen=True)
class Measure:
    """A reported number. by_text: a function that computes one value per text from the counts.

    The values of a perplexity are losses. Perplexities are compared by ratios, and lower is better.
    """

    name: str
    by_text: Callable[[Counts], ByText]
    perplexity: bool = False

    def estimate(self, values: Sequence[float]) -> Estimate:
        """Estimates the measure from values by text, or a difference (for perplexities, a ratio) from paired values."""
        found = estimate(values)
        return found.exp() if self.perplexity else found

    @property
    def neutral(self) -> float:
        """The difference, or the ratio of perplexities, of two rows that do not differ."""
        return 1.0 if self.perplexity else 0.0

    def verdict(self, versus: Estimate | None) -> Verdict:
        """Returns the verdict on a paired difference or ratio, or "" for None. "equal" means that no text differs."""
        if versus is None:
            return ""
        if all(value == self.neutral for value in versus.values):
            return "equal"
        side = versus.side_of(self.neutral)
        if side not in ("below", "above"):
            return "not significant"
        return "better" if (side == "below") == self.perplexity else "worse"


@dataclass(frozen=True)
class Measurement:
    """The way to measure models of one kind.

    count: a function that runs a job and returns its counts, (N,) each.
    setting: a function of the shortest length and the seed. It returns a number that the counts depend on.
    note: a description of that number.
    baselines: the names of the baseline rows, and their keys in ``FITS``. The last row is the reference.
    fewest_texts: the minimum number of texts.
    whole_texts: whether each length is the length of the chunks in which whole texts are read. If not, it is the number
        of tokens that are read from each text.
    """

    count: Callable[[nn.Module, Job, Tick], dict[str, Tensor]]
    setting: Callable[[int, int], int]
    note: str
    measures: tuple[Measure, ...]
    baselines: Mapping[str, str]
    fewest_texts: int = 1
    whole_texts: bool = True


def ratio(totals: str, counts: str) -> Callable[[Counts], ByText]:
    """Returns a ``by_text`` function for a ratio of two sums over texts. The values have the ratio as their mean."""

    def by_text(counted: Counts) -> ByText:
        known = [total for total in counted[totals] if total is not None]
        return shares(known, [count or 0 for count in counted[counts]]) if len(known) == len(counted[totals]) else None

    return by_text


def mean_score(score: Callable[[float], float], *passages: str) -> Callable[[Counts], ByText]:
    """Returns a ``by_text`` function for ranks. For each text, it gives the mean score of the
    ranks of the text's passages."""

    def by_text(ranks: Counts) -> ByText:
        scores = [[score(rank) for rank in ranks[passage] if rank is not None] for passage in passages]
        return tuple(sum(of_text) / len(of_text) for of_text in zip(*scores, strict=True))

    return by_text


def by_query(name: str) -> Callable[[Counts], ByText]:
    """Returns a ``by_text`` function for values that are counted for each query."""

    def by_text(counted: Counts) -> ByText:
        known = tuple(value for value in counted[name] if value is not None)
        return known if len(known) == len(counted[name]) else None

    return by_text


MEASUREMENTS: dict[Kind, Measurement] = {
    "causal": Measurement(
        count=lambda model, job, tick: causal_counts(
            model, job.sample, length=job.chunk, last=job.setting, sliding=job.fit == "sliding", tick=tick
        ),
        setting=lambda shortest, seed: min(128, shortest // 2),
        note="the last tokens are the last {} tokens of each text",
        measures=(
            Measure("perplexity", ratio("loss", "tokens"), perplexity=True),
            Measure("perplexity of the last tokens", ratio("loss of the last", "last tokens"), perplexity=True),
        ),
        # The last tokens of a chunk see the same context whether the earlier text is dropped or fed separately.
        baselines={"truncated or chunked": "chunked"},
    ),
    "masked": Measurement(
        count=lambda model, job, tick: masked_counts(
            model, job.sample, length=job.chunk, seed=job.setting, sliding=job.fit == "sliding", tick=tick
        ),
        setting=lambda shortest, seed: seed,
        note="15% of the tokens are masked, drawn with seed {}",
        measures=(
            Measure("masked-token accuracy", ratio("correct", "masked")),
            Measure("pseudo-perplexity", ratio("loss", "masked"), perplexity=True),
        ),
        baselines={"chunked": "chunked"},
    ),
    "sentences": Measurement(
        count=lambda model, job, tick: retrieval_ranks(
            encoder(model, job.sample, str(job.runnable.pooling), tick=tick), job.ids, job.chunks, passage=job.setting
        ),
        setting=lambda shortest, seed: min(48, shortest // 4),
        note=f"queries: {len(PASSAGES)} passages of {{}} tokens from each text; candidates: all texts",
        measures=(
            Measure("recall at 1", mean_score(lambda rank: rank == 1, *PASSAGES)),
            Measure("mean reciprocal rank", mean_score(lambda rank: 1 / rank, *PASSAGES)),
            *(
                Measure(f"recall at 1, passages from the {place}", mean_score(lambda rank: rank == 1, place))
                for place in PASSAGES
            ),
        ),
        baselines={"truncated": "truncated", "chunked": "chunked"},
        fewest_texts=10,  # with fewer texts, the correct text is too often found by chance
        whole_texts=False,
    ),
}
RANKINGS = tuple(Measure(name, by_query(name)) for name in RANKING_VALUES)
"""The measures of retrieval from a collection, with one value per query."""
MEASURES = {
    measure.name: measure
    for measures in (*(measurement.measures for measurement in MEASUREMENTS.values()), RANKINGS)
    for measure in measures
}
