"""Should an encoder and a decoder share one table of positions?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.found import Axis, Found, model_size
from posembed.lab.question import Loaded, TrainedQuestion, presets_of
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.lab.tasks.pairs import PROBLEMS, problem_named
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric
from posembed.settings import Ascending, Count, option

ONE, TWO = "one-table", "two-tables"
WITHIN = Metric(
    "exact match within the sizes of training",
    "The share of held-out pairs whose target is written without a mistake: the mean of the tested sizes up to the "
    "largest of training.",
    better="high",
    kind="share",
)
LOSS_WITHIN = Metric("loss within the sizes of training", unit="nats per token of the targets", digits=4, told=True)
PAST = Metric("exact match past the sizes of training", better="high", kind="share", told=True)
EXACT = Metric("exact match", better="high", kind="share")
TOKENS = Metric(
    "token accuracy",
    "The share of tokens predicted correctly, each from the correct tokens before it.",
    better="high",
    kind="share",
)
LOSS = Metric("loss", unit="nats per token of the targets", digits=4)
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


def lengths_of(problem: str, size: int) -> dict[str, Any]:
    """Returns the lengths in tokens of the longest pair of this size, as fields of ``SharingSpec``."""
    source, target = (longest + 1 for longest in PROBLEMS[problem].longest(size))
    return {"source_length": source, "target_length": target, "train_length": source + target}


class Sharing(TrainedQuestion[SharingSpec, Rewritten]):
    name = "sharing"
    metrics = (WITHIN, LOSS_WITHIN, PAST, EXACT, TOKENS, LOSS)
    loss_unit = "per token of the targets"
    tables_note = "The rows of two-tables are those of the encoder, followed by those of the decoder."
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

    def values_of(self, result: RunResult[SharingSpec, Rewritten]) -> Iterator[Value]:
        measured, spec = result.measurements, result.spec
        assert measured is not None
        for where, inside in ((WITHIN, True), (PAST, False)):
            sizes = [size for size in spec.test_sizes if (size <= spec.train_size) == inside]
            if sizes:
                yield Value(where.name, mean_over(sizes, measured.exact_match))
        inside_sizes = [size for size in spec.test_sizes if size <= spec.train_size]
        if inside_sizes:
            yield Value(LOSS_WITHIN.name, mean_over(inside_sizes, measured.loss))
        for metric, by_size in (
            (EXACT, measured.exact_match),
            (TOKENS, measured.token_accuracy),
            (LOSS, measured.loss),
        ):
            yield from (Value(metric.name, value, size) for size, value in by_size.items())

    def axis(self, results: Sequence[RunResult[SharingSpec, Rewritten]], metric: Metric) -> Axis:
        spec = results[0].spec
        return Axis(PROBLEMS[spec.problem].unit, max(spec.test_sizes), trained=spec.train_size)

    def about(self, found: Found) -> str:
        spec = found.spec
        unit = PROBLEMS[spec.problem].unit
        sizes = "one" if spec.train_size == 1 else f"1 to {spec.train_size:,} {unit}"
        return (
            f"Each run trains the same small encoder-decoder ({model_size(spec)}, on each side) for {spec.steps:,} "
            f"steps to {PROBLEMS[spec.problem].line}, {sizes} at a time. It is tested on {spec.test_pairs:,} pairs of "
            "each size that training never draws. Only the positions of the encoder and of the decoder differ; "
            "cross-attention has none."
        )

    def remarks(self, found: Found) -> Iterable[str]:
        two = found.versus(WITHIN, TWO) if found.reference == ONE and TWO in found.names else None
        if two is None:
            return
        more = found.row(TWO).position_parameters - found.row(ONE).position_parameters
        says = {
            "better": "and writes significantly more targets without a mistake. These runs contradict the claim.",
            "worse": "and writes significantly fewer targets without a mistake. These runs agree with the claim.",
            "not significant": "and changes the exact match by no significant amount, so parameters are all that it "
            "certainly adds.",
            "unknown": "and these runs cannot tell what it gains.",
        }[two.verdict]
        yield (
            "Guides call two tables a mistake where one could be shared. The second table adds "
            f"{more:,} parameters ({more / found.row(ONE).parameters:.1%} of the model) {says}"
        )


def mean_over(sizes: Sequence[int], values: Mapping[int, float | None]) -> float | None:
    """Returns the mean of the values at these sizes; None if there are none or one of them is None."""
    known = [values[size] for size in sizes]
    if not known or None in known:
        return None
    return math.fsum(value for value in known if value is not None) / len(known)
