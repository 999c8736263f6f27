"""Measurements of models: a ``Measurement`` for each kind of model, and a ``Metric`` for each reported number.

To add a number, return it from the measurement's count, and add its metric to ``METRICS``. To add a way to feed a long
text, add an entry to ``FITS`` and the name of its row to ``baselines``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from posembed.evaluation.counts import FITS, Counts, Tick, causal_counts, masked_counts
from posembed.evaluation.passages import PASSAGES, passage_counts
from posembed.evaluation.ranking import RANKING_VALUES
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.settings import Kind
from posembed.evaluation.texts import Sample
from posembed.evaluation.ways import Encoder
from posembed.measure.metrics import Metric

VERSION = 3
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""


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

    def count(self, model: nn.Module, tick: Tick) -> Counts:
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
class Measurement:
    """The way to measure models of one kind.

    count: a function that runs a job and returns its counts, by measure.
    setting: a function of the shortest length and the seed. It returns a number that the counts depend on.
    note: a description of that number.
    baselines: the names of the baseline rows, and their keys in ``FITS``. The last row is the reference.
    fewest_texts: the minimum number of texts.
    whole_texts: whether whole texts are read, in chunks of each length. If not, each length is the number of tokens
        that are read from each text.
    """

    count: Callable[[nn.Module, Job, Tick], Counts]
    setting: Callable[[int, int], int]
    note: str
    measures: tuple[str, ...]
    baselines: Mapping[str, str]
    fewest_texts: int = 1
    whole_texts: bool = True


MEASUREMENTS: dict[Kind, Measurement] = {
    "causal": Measurement(
        count=lambda model, job, tick: causal_counts(
            model, job.sample, length=job.chunk, last=job.setting, sliding=job.fit == "sliding", tick=tick
        ),
        setting=lambda shortest, seed: min(128, shortest // 2),
        note="the last tokens are the last {} tokens of each text",
        measures=("perplexity", "perplexity of the last tokens"),
        # The last tokens of a chunk see the same context whether the earlier text is dropped or fed separately.
        baselines={"truncated or chunked": "chunked"},
    ),
    "masked": Measurement(
        count=lambda model, job, tick: masked_counts(
            model, job.sample, length=job.chunk, seed=job.setting, sliding=job.fit == "sliding", tick=tick
        ),
        setting=lambda shortest, seed: seed,
        note="15% of the tokens are masked, drawn with seed {}",
        measures=("masked-token accuracy", "pseudo-perplexity"),
        baselines={"chunked": "chunked"},
    ),
    "sentences": Measurement(
        count=lambda model, job, tick: passage_counts(
            Encoder(model, job.sample.before, job.sample.after, str(job.runnable.pooling)),
            job.ids,
            job.chunks,
            passage=job.setting,
            tick=tick,
        ),
        setting=lambda shortest, seed: min(48, shortest // 4),
        note=f"queries: {len(PASSAGES)} passages of {{}} tokens from each text; candidates: all texts",
        measures=(
            *("recall at 1", "mean reciprocal rank"),
            *(f"recall at 1, passages from the {place}" for place in PASSAGES),
        ),
        baselines={"truncated": "truncated", "chunked": "chunked"},
        fewest_texts=10,  # with fewer texts, the correct text is too often found by chance
        whole_texts=False,
    ),
}
PERPLEXITIES = ("perplexity", "perplexity of the last tokens", "pseudo-perplexity")
SCORES = ("masked-token accuracy", *MEASUREMENTS["sentences"].measures, *RANKING_VALUES)
METRICS = {
    **{name: Metric(name, kind="log", near=3) for name in PERPLEXITIES},
    **{name: Metric(name, better="high", kind="score") for name in SCORES},
}
