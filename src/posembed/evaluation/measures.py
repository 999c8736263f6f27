"""Measurements of models: a ``Measurement`` for each kind of model, and a ``Measure`` for each reported number.

To add a measure, add a ``Measure`` to ``MEASUREMENTS``. To add a way to feed a long text, add an entry to ``FITS`` and
the name of its row to ``baselines``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from posembed.measure.metrics import Metric

VERSION = 3
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""

Sums = Iterable[tuple["float | None", float]]
"""The sum of values and the weight of each text. The value of a perplexity is a loss; None is not finite."""


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


class Measure(NamedTuple):
    """A reported number. sums: a function from counts to the sum and the weight of each text."""

    metric: Metric
    sums: Callable[[Counts], Sums]


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


def perplexity(name: str, losses: str, tokens: str) -> Measure:
    return Measure(Metric(name, kind="log", near=3), per(losses, tokens))


def score(name: str, sums: Callable[[Counts], Sums]) -> Measure:
    return Measure(Metric(name, better="high", kind="score"), sums)


def per(totals: str, counts: str) -> Callable[[Counts], Sums]:
    return lambda counted: zip(counted[totals], numbers(counted[counts]), strict=True)


def numbers(counted: Sequence[float | None]) -> list[float]:
    return [each or 0 for each in counted]


def of_passages(of_rank: Callable[[float], float], *passages: str) -> Callable[[Counts], Sums]:
    """Returns a function that adds up the scores of the ranks of each text's passages."""
    return lambda ranks: (
        (sum(map(of_rank, numbers(of_text))), len(passages))
        for of_text in zip(*(ranks[passage] for passage in passages), strict=True)
    )


def of_query(name: str) -> Callable[[Counts], Sums]:
    return lambda counted: ((value, 1.0) for value in counted[name])


MEASUREMENTS: dict[Kind, Measurement] = {
    "causal": Measurement(
        count=lambda model, job, tick: causal_counts(
            model, job.sample, length=job.chunk, last=job.setting, sliding=job.fit == "sliding", tick=tick
        ),
        setting=lambda shortest, seed: min(128, shortest // 2),
        note="the last tokens are the last {} tokens of each text",
        measures=(
            perplexity("perplexity", "loss", "tokens"),
            perplexity("perplexity of the last tokens", "loss of the last", "last tokens"),
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
            score("masked-token accuracy", per("correct", "masked")),
            perplexity("pseudo-perplexity", "loss", "masked"),
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
            score("recall at 1", of_passages(lambda rank: rank == 1, *PASSAGES)),
            score("mean reciprocal rank", of_passages(lambda rank: 1 / rank, *PASSAGES)),
            *(
                score(f"recall at 1, passages from the {place}", of_passages(lambda rank: rank == 1, place))
                for place in PASSAGES
            ),
        ),
        baselines={"truncated": "truncated", "chunked": "chunked"},
        fewest_texts=10,  # with fewer texts, the correct text is too often found by chance
        whole_texts=False,
    ),
}
RANKINGS = tuple(score(name, of_query(name)) for name in RANKING_VALUES)
"""The measures of retrieval from a collection, with one value per query."""
MEASURES = {
    measure.metric.name: measure
    for measures in (*(measurement.measures for measurement in MEASUREMENTS.values()), RANKINGS)
    for measure in measures
}
