"""Should an encoder and a decoder share one table of positions?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.by_seed import FEWEST_ALIKE, BySeed
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.questions.problems import BySize
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.lab.tasks.pairs import PROBLEMS, problem_named
from posembed.settings import Ascending, Count, option
from posembed.statistics import Estimate

ONE, TWO = "one-table", "two-tables"
TABLES = (ONE, TWO, "encoder-table", "decoder-table")
"""Where a learned table is: one for both, one for each, or one for one side and no position on the other."""
SAME_ON_BOTH = ("sinusoidal", "none", "rope", "alibi", "t5", "kerple-log", "kerple-power", "pope")
"""Encodings that have a form for encoders and for decoders. t5 and the two kerples are trained separately on each."""


@dataclass(frozen=True)
class Rewritten:
    """Measurements on held-out pairs, by size. None means that a table has no row for some position."""

    exact_match: dict[int, float | None]
    """The share of targets that greedy decoding writes without a mistake."""
    token_accuracy: dict[int, float | None]
    """The share of correct tokens, each predicted from the correct tokens before it."""
    loss: dict[int, float | None]
    """The mean loss in nats per token of the targets."""


@dataclass(frozen=True, kw_only=True)
class SharingSpec(TrainingSpec):
    Measured = Rewritten
    SEEDS_DIFFER_SINCE = 1

    problem: str = option(f"What is written: {', '.join(PROBLEMS)}.", MODEL)
    train_size: Count = option(
        "Size of the largest training pair, in letters, dates or clauses. The default depends on the problem.", MODEL
    )
    test_sizes: Ascending[Count] = option(
        "Sizes to measure at, separated by commas. The default depends on the problem.", MODEL
    )
    test_pairs: Count = option("Held-out pairs per size to measure on.", TRAINING)
    source_length: int
    """Tokens of the longest training source, with its end; the rows of the encoder's table."""
    target_length: int
    """Tokens that the decoder reads to write the longest training target; the rows of the decoder's table."""

    def shortened(self, tokens: int) -> SharingSpec:
        if self.train_length <= tokens:
            return self
        size = max(self.train_size * tokens // self.train_length, 1)
        return dataclasses.replace(self, train_size=size, **lengths_of(self.problem, size))


@dataclass(frozen=True, kw_only=True)
class SharingRow(Row):
    """The results of one arrangement of tables. Intervals are over seeds; differences are paired by seed."""

    exact_match: BySize
    token_accuracy: BySize
    loss: BySize
    within: Estimate | None
    """The mean exact match of the tested sizes up to the training size."""
    versus_reference: Estimate | None
    """``within`` minus that of the reference; None for the reference itself."""
    loss_versus_reference: Estimate | None
    """The same for the mean loss."""
    past_versus_reference: Estimate | None
    """The mean exact match of the sizes past the training size, minus the reference's."""


@dataclass(frozen=True, kw_only=True)
class SharingSummary(Summary):
    problem: str
    unit: str
    steps: int
    train_size: int
    test_sizes: tuple[int, ...]
    test_pairs: int
    rows: tuple[SharingRow, ...]


def lengths_of(problem: str, size: int) -> dict[str, Any]:
    """Returns the lengths in tokens of the longest pair of this size, as fields of ``SharingSpec``."""
    source, target = (longest + 1 for longest in PROBLEMS[problem].longest(size))
    return {"source_length": source, "target_length": target, "train_length": source + target}


class Sharing(TrainedQuestion[SharingSpec, Rewritten, SharingSummary]):
    name = page = "sharing"
    asks = "Should an encoder and a decoder share one position table?"
    Spec = SharingSpec
    usual = (ONE, TWO, "sinusoidal", "encoder-table", "decoder-table", "none")
    usual_reference = ONE
    names_help = f"What to compare, separated by commas: {', '.join((*TABLES, *SAME_ON_BOTH))}."
    presets = presets_of("sharing")
    preset = "quick"
    presets_help = "quick (minutes), small (hours on two cores) or base (a GPU)."

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes depend on the problem, so no preset sets them."""
        chosen = super().settings(preset, given)
        problem = problem_named(chosen["problem"])
        return {"train_size": problem.train_size, "test_sizes": problem.test_sizes, **chosen}

    def check_name(self, name: str) -> None:
        if name == "learned":
            raise ArgumentError(f"a learned table is {ONE} or {TWO} here; choose one of them, or both")
        if name not in (*TABLES, *SAME_ON_BOTH):
            raise unknown("encoding", name, (*TABLES, *SAME_ON_BOTH), of=" of an encoder and a decoder")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.sharing import Rewriting

        return Rewriting(chosen["problem"]), lengths_of(chosen["problem"], chosen["train_size"])

    def summary(self, runs: Sequence[BySeed[Rewritten]], spec: SharingSpec, reading: Compared) -> SharingSummary:
        return SharingSummary(
            problem=spec.problem,
            unit=PROBLEMS[spec.problem].unit,
            steps=spec.steps,
            train_size=spec.train_size,
            test_sizes=spec.test_sizes,
            test_pairs=spec.test_pairs,
            rows=tuple(sharing_row(each, spec) for each in runs),
        )


def sharing_row(runs: BySeed[Rewritten], spec: SharingSpec) -> SharingRow:
    inside = [size for size in spec.test_sizes if size <= spec.train_size]
    past = [size for size in spec.test_sizes if size > spec.train_size]

    def over(sizes: Sequence[int], read: Callable[[Rewritten], Mapping[int, float | None]]) -> Any:
        return lambda measured: mean_over(sizes, read(measured))

    exact = over(inside, lambda m: m.exact_match)
    return SharingRow(
        **runs.row,
        exact_match=runs.means(lambda m: m.exact_match, spec.test_sizes),
        token_accuracy=runs.means(lambda m: m.token_accuracy, spec.test_sizes),
        loss=runs.means(lambda m: m.loss, spec.test_sizes),
        within=runs.mean(exact),
        versus_reference=of_shares(runs.less(runs.reference, exact)),
        loss_versus_reference=runs.less(runs.reference, over(inside, lambda m: m.loss)),
        past_versus_reference=of_shares(runs.less(runs.reference, over(past, lambda m: m.exact_match))),
    )


def of_shares(difference: Estimate | None) -> Estimate | None:
    """Returns a difference of shares, without its interval if a few seeds have the same difference: shares of a few
    hundred pairs are often the same by chance, and the interval would have no width."""
    if difference is None or len(difference.values) >= FEWEST_ALIKE:
        return difference
    alike = max(difference.values) - min(difference.values) < 1e-9
    return dataclasses.replace(difference, low=None, high=None) if alike else difference


def mean_over(sizes: Sequence[int], values: Mapping[int, float | None]) -> float | None:
    """Returns the mean of the values at these sizes; None if there are none or one of them is None."""
    known = [values[size] for size in sizes]
    if not known or None in known:
        return None
    return math.fsum(value for value in known if value is not None) / len(known)
