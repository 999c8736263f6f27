"""The settings of learning from an amount of text, and the losses that are measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from posembed.errors import ArgumentError, DataError
from posembed.lab.metrics import Measured, by_x, metrics
from posembed.lab.runs.spec import TRAINING
from posembed.lab.tasks.text_specs import LanguageSpec
from posembed.settings import Share, option

AMOUNTS = "shares of the text, such as 1/16 (1 is all of it), or numbers of tokens, such as 65536"

HELD_OUT, TRAINING_TEXT, GAP = metrics("amounts")
TRAIN_TOKENS = "training tokens"
"""The name of the number of tokens that a run trained on, in ``Measured.sizes``."""


def measured_losses(held_out: float, training: float, train_tokens: int, *, by_amount: bool) -> Measured:
    """Returns the losses of a trained model in eval mode, in nats per token, in windows of the training length.

    training: the loss on text that the run trained on, at most as many tokens as of held-out text. train_tokens: the
    number of tokens in the text that the run trained on, which is x if ``by_amount``.
    """
    x = train_tokens if by_amount else None
    known = {HELD_OUT: {x: held_out}, TRAINING_TEXT: {x: training}, GAP: {x: held_out - training}}
    return Measured(tuple(by_x(known)), {TRAIN_TOKENS: train_tokens})


@dataclass(frozen=True, kw_only=True)
class AmountSpec(LanguageSpec):
    """The settings of a run that trains on an amount of the text: one stretch of it, which depends on the seed."""

    amount: str = option(f"Training text: {AMOUNTS}.", TRAINING)


@dataclass(frozen=True, kw_only=True)
class DataSpec(AmountSpec):
    VARIED: ClassVar[str | None] = "amount"

    amount: str = ""

    @property
    def varied_in_words(self) -> str:
        return amount_in_words(self.amount)


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
    """Returns the shortest spelling of an amount: "1/4" for "0.25". Returns other texts unchanged."""
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

    Raises DataError if the text has fewer tokens.
    """
    tokens = tokens_meant(amount, available)
    if tokens > available:
        raise DataError(
            f"the text to train on has {available:,} tokens, fewer than the amount {tokens:,}; give more text, or a "
            "smaller amount (1 is all of the text)"
        )
    return tokens


def tokens_meant(amount: str, available: int) -> int:
    """Returns the same number as ``tokens_of``, even if the text has fewer tokens."""
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


@dataclass(frozen=True, kw_only=True)
class DropoutSpec(AmountSpec):
    COMPARED: ClassVar[str] = "rate"

    encoding: str = "learned"
    rate: str = ""
    """The dropout rate after the sum of tokens and positions."""
    dropout: Share = option("Dropout after each sublayer, the same in all runs.", TRAINING)

    @property
    def name(self) -> str:
        return f"dropout {super().name}"
