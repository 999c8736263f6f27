"""Amounts of training text, and the question of how much of it each encoding needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from posembed.errors import ArgumentError, DataError
from posembed.lab.by_seed import BySeed
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.questions.lengths import LanguageSpec, corpus_of, with_length_counts
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import TRAINING, with_default_window
from posembed.settings import option
from posembed.statistics import Estimate, paired_difference

AMOUNTS = "shares of the text, such as 1/16 (1 is all of it), or numbers of tokens, such as 65536"

ByAmount: TypeAlias = dict[str, Estimate | None]
"""Estimates by amount, as it is given. None means that no run with this amount succeeded."""


@dataclass(frozen=True)
class Losses:
    """The losses of a trained model in eval mode, in nats per token, in windows of the training length."""

    held_out: float
    training: float
    """The loss on text that the run trained on: at most as many tokens as of held-out text."""
    train_tokens: int
    """The tokens of the text that the run trained on."""

    @property
    def gap(self) -> float:
        """How much higher the held-out loss is than the training loss."""
        return self.held_out - self.training


@dataclass(frozen=True, kw_only=True)
class AmountSpec(LanguageSpec):
    """The settings of a run that trains on an amount of the text: one stretch of it, which depends on the seed."""

    Measured = Losses

    amount: str = option(f"Training text: {AMOUNTS}.", TRAINING)

    @property
    def amount_in_words(self) -> str:
        return amount_in_words(self.amount)


@dataclass(frozen=True, kw_only=True)
class DataSpec(AmountSpec):
    VARIED: ClassVar[str | None] = "amount"

    amount: str = ""

    @property
    def varied_in_words(self) -> str:
        return self.amount_in_words


@dataclass(frozen=True, kw_only=True)
class DataRow(Row):
    """The results of one encoding. Losses are in nats per token; intervals are over seeds."""

    held_out: ByAmount
    training: ByAmount
    versus_reference: ByAmount
    """The held-out loss minus the reference's at the same amount, paired by seed; None for the reference itself."""
    growth: Estimate | None
    """The held-out loss with the smallest amount minus that with the largest, paired by seed."""
    growth_versus_reference: Estimate | None
    """``growth`` minus the reference's, paired by seed; None for the reference itself."""
    runs: int
    """The number of runs that succeeded, over all amounts."""

    @property
    def succeeded(self) -> int:
        return self.runs

    @property
    def counts(self) -> set[int]:
        return {len(loss.values) for loss in self.held_out.values() if loss is not None}


@dataclass(frozen=True, kw_only=True)
class DataSummary(Summary):
    amounts: dict[str, int]
    """The numbers of tokens by amount, in ascending order."""
    tokens_read: int
    """The number of tokens that a run reads in training; the expected number if sequences differ in length."""
    rows: tuple[DataRow, ...]


class DataEfficiency(TrainedQuestion[DataSpec, Losses, DataSummary]):
    name = "data-efficiency"
    page = "data_efficiency"
    asks = "How much training text does each encoding need?"
    Spec = DataSpec
    usual = ("learned", "sinusoidal", "rope", "none")
    usual_reference = "learned"
    varied_help = f"Amounts of training text to compare, separated by commas: {AMOUNTS}."
    presets = presets_of("data-efficiency")
    preset = "quick"
    presets_help = "quick (minutes) or gpt2 (a GPU)."

    def canonical(self, text: str) -> str:
        return canonical_amount(text)

    def check_value(self, value: str) -> None:
        share_or_tokens(value)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.amounts import TrainingOnLess

        with_length_counts(chosen)
        corpus = corpus_of(chosen)
        require_different(self.values(chosen), len(corpus.train))
        with_default_window(chosen)
        return TrainingOnLess(corpus), {"data_sha256": corpus.sha256}

    def shown(self, results: Sequence[RunResult[Any, Any]]) -> Sequence[RunResult[Any, Any]]:
        """Returns the runs with the largest amount that any run succeeded with."""
        tokens = [0 if result.measurements is None else result.measurements.train_tokens for result in results]
        return [result for result, each in zip(results, tokens, strict=True) if each == max(tokens) > 0]

    def summary(self, runs: Sequence[BySeed[Losses]], spec: DataSpec, reading: Compared) -> DataSummary:
        tokens = {
            result.spec.amount: result.measurements.train_tokens
            for each in runs
            for result in each.results
            if result.measurements is not None
        }
        amounts = dict(sorted(tokens.items(), key=lambda pair: pair[1]))
        return DataSummary(
            amounts=amounts,
            tokens_read=spec.tokens_read,
            rows=tuple(data_row(each, list(amounts)) for each in runs),
        )


def data_row(runs: BySeed[Losses], amounts: Sequence[str]) -> DataRow:
    def growth(of: BySeed[Losses]) -> dict[int, float]:
        if len(amounts) < 2:
            return {}
        least, most = (of.at(amounts[index]).values(lambda m: m.held_out) for index in (0, -1))
        return {seed: least[seed] - most[seed] for seed in sorted(least.keys() & most.keys())}

    at = {amount: runs.at(amount) for amount in amounts}
    own = growth(runs)
    return DataRow(
        **runs.row,
        held_out={amount: each.mean(lambda m: m.held_out) for amount, each in at.items()},
        training={amount: each.mean(lambda m: m.training) for amount, each in at.items()},
        versus_reference={amount: each.less(each.reference, lambda m: m.held_out) for amount, each in at.items()},
        growth=paired_difference(own, dict.fromkeys(own, 0.0)),
        growth_versus_reference=None if runs.reference is None else paired_difference(own, growth(runs.reference)),
        runs=sum(len(each.measured) for each in at.values()),
    )


def share_or_tokens(amount: str) -> Fraction | int:
    """Returns the share of the text (a Fraction, at most 1) or the number of tokens (above 1) that an amount means.

    Raises ArgumentError for other texts.
    """
    if re.fullmatch(r"\d{1,15}(/\d{1,15}|\.\d{1,15})?|\.\d{1,15}", amount, re.ASCII) and not re.search(r"/0+$", amount):
        value = Fraction(amount)
        if 0 < value <= 1:
            return value
        if value > 1 and value.denominator == 1:
            return int(value)
    raise ArgumentError(f"expected amounts of training text as {AMOUNTS}; got {amount!r}")


def canonical_amount(amount: str) -> str:
    """Returns the shortest spelling of an amount: "1/4" for "0.25". Returns other texts as they are."""
    try:
        return str(share_or_tokens(amount))
    except ArgumentError:
        return amount


def amount_in_words(amount: str) -> str:
    """Formats an amount: "1/16 of the text", "all of the text" or "65,536 tokens"."""
    value = share_or_tokens(amount)
    if isinstance(value, int):
        return f"{value:,} tokens"
    return "all of the text" if value == 1 else f"{value} of the text"


def tokens_of(amount: str, available: int) -> int:
    """Returns the number of tokens that an amount means in a text of ``available`` tokens.

    Raises DataError if the text has fewer.
    """
    tokens = tokens_meant(amount, available)
    if tokens > available:
        raise DataError(
            f"the text to train on has {available:,} tokens, fewer than the amount {tokens:,}; give more text, or a "
            "smaller amount (1 is all of the text)"
        )
    return tokens


def tokens_meant(amount: str, available: int) -> int:
    """Returns the same, even if the text has fewer."""
    value = share_or_tokens(amount)
    return value if isinstance(value, int) else round(value * available)


def require_different(amounts: Sequence[str], available: int) -> None:
    """Raises ArgumentError if two of the amounts mean the same number of tokens in a text of ``available`` tokens."""
    known: dict[int, str] = {}
    for amount in amounts:
        tokens = tokens_meant(amount, available)
        if tokens in known:
            raise ArgumentError(
                f"amounts: {known[tokens]} and {amount} are the same text, {tokens:,} tokens; leave out one of them"
            )
        known[tokens] = amount
