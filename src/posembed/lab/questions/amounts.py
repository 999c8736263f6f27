"""Amounts of training text, and the question of how much of it each encoding needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from posembed.errors import ArgumentError, DataError
from posembed.lab.found import Axis, Found, model_size
from posembed.lab.question import Loaded, TrainedQuestion, presets_of
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import TRAINING, with_default_window
from posembed.lab.tasks.text_specs import LanguageSpec, corpus_of, with_length_counts
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric
from posembed.settings import option

AMOUNTS = "shares of the text, such as 1/16 (1 is all of it), or numbers of tokens, such as 65536"

HELD_OUT = Metric("held-out loss", unit="nats per token")
TRAINING_TEXT = Metric(
    "loss on the training text",
    "In eval mode, on at most as many tokens as the held-out loss. If it is far below the held-out loss, the model has "
    "learned its text by heart.",
    better=None,
    unit="nats per token",
)
GAP = Metric("gap", "The held-out loss minus the loss on the training text.", unit="nats per token", told=True)


@dataclass(frozen=True)
class Losses:
    """The losses of a trained model in eval mode, in nats per token, in windows of the training length."""

    held_out: float
    training: float
    """The loss on text that the run trained on: at most as many tokens as of held-out text."""
    train_tokens: int
    """The tokens of the text that the run trained on."""

    def values(self) -> Iterator[Value]:
        yield Value(HELD_OUT.name, self.held_out)
        yield Value(TRAINING_TEXT.name, self.training)
        yield Value(GAP.name, self.held_out - self.training)


class LossesByAmount(Losses):
    """The same, by the number of tokens of the training text."""

    def values(self) -> Iterator[Value]:
        yield from (each._replace(x=self.train_tokens) for each in super().values())


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
    Measured = LossesByAmount

    amount: str = ""

    @property
    def varied_in_words(self) -> str:
        return self.amount_in_words


class DataEfficiency(TrainedQuestion[DataSpec, LossesByAmount]):
    name = "data-efficiency"
    asks = "How much training text does each encoding need?"
    Spec = DataSpec
    usual = ("learned", "sinusoidal", "rope", "none")
    usual_reference = "learned"
    metrics = (HELD_OUT, TRAINING_TEXT, GAP)
    of_each = "encoding and amount"
    tables_note = "From the runs with the most text."
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

    def axis(self, results: Sequence[RunResult[DataSpec, LossesByAmount]], metric: Metric) -> Axis:
        amounts = sorted({each.measurements.train_tokens for each in results if each.measurements is not None})
        tokens = results[0].spec.tokens_read
        return Axis(
            "tokens of training text",
            x=amounts[-1] if amounts else 0,
            base=amounts[-1] if len(amounts) > 1 else None,
            notes={amount: f"read {times_read(tokens / amount)}" for amount in amounts},
            told=tuple(amounts),
        )

    def about(self, found: Found) -> str:
        spec = found.spec
        return (
            f"Each run trains the same small Transformer ({model_size(spec)}) on a part of {spec.data} for "
            f"{spec.steps:,} steps, in {spec.sequences_in_words} (tokenizer: {spec.tokenizer}). Only the amount of "
            "text and the position encoding differ. The number of steps is the same for all amounts, so all models get "
            "the same number of updates, and a smaller amount is read more often."
        )


def times_read(times: float) -> str:
    """Formats how often a text is read: "75 times", "1.2 times"."""
    if times < 0.05:
        return "less than 0.1 times"
    return f"{times:,.0f} times" if times >= 9.95 else f"{times:.1f} times"


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
