"""How much dropout should follow the sum of tokens and positions?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.questions.amounts import AmountSpec, Losses, canonical_amount, share_or_tokens
from posembed.lab.questions.lengths import corpus_of, with_length_counts
from posembed.lab.runs.spec import TRAINING
from posembed.settings import Share, option
from posembed.statistics import Estimate


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


@dataclass(frozen=True, kw_only=True)
class DropoutRow(Row):
    """The results of one rate. Losses are in nats per token, in eval mode; intervals are over seeds."""

    held_out: Estimate | None
    training: Estimate | None
    gap: Estimate | None
    """The held-out loss minus the training loss, paired by seed."""
    versus_reference: Estimate | None
    """The held-out loss minus the reference's, paired by seed; None for the reference itself."""
    training_versus_reference: Estimate | None
    gap_versus_reference: Estimate | None


@dataclass(frozen=True, kw_only=True)
class DropoutSummary(Summary):
    train_tokens: int | None
    """The number of tokens of the training text; None if every run failed."""
    tokens_read: int
    """The number of tokens that a run reads in training; the expected number if sequences differ in length."""
    rows: tuple[DropoutRow, ...]


class Dropout(TrainedQuestion[DropoutSpec, Losses, DropoutSummary]):
    name = page = "dropout"
    asks = "How much dropout should follow the sum of tokens and positions?"
    Spec = DropoutSpec
    usual = ("0", "0.1", "0.3")
    usual_reference = "0"
    names_help = "Dropout rates to compare, at least 0 and below 1, separated by commas."
    presets = presets_of("dropout")
    preset = "quick"
    presets_help = "quick (minutes) or gpt2 (a GPU)."

    def canonical(self, text: str) -> str:
        return f"{Decimal(text).normalize():f}" if is_rate(text) else text

    def check_name(self, name: str) -> None:
        if not is_rate(name):
            raise ArgumentError(f"rates: expected numbers of at least 0 and below 1, such as 0,0.1,0.3; got {name!r}")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.amounts import DropoutAfterTheSum

        share_or_tokens(chosen["amount"])
        chosen["amount"] = canonical_amount(chosen["amount"])
        with_length_counts(chosen)
        corpus = corpus_of(chosen)
        return DropoutAfterTheSum(corpus), {"data_sha256": corpus.sha256}

    def summary(self, runs: Sequence[BySeed[Losses]], spec: DropoutSpec, reading: Compared) -> DropoutSummary:
        return DropoutSummary(
            train_tokens=next((m.train_tokens for each in runs for m in each.measured.values()), None),
            tokens_read=spec.tokens_read,
            rows=tuple(dropout_row(each) for each in runs),
        )


def is_rate(text: str) -> bool:
    return re.fullmatch(r"0?\.\d{1,15}|0", text, re.ASCII) is not None


def dropout_row(runs: BySeed[Losses]) -> DropoutRow:
    return DropoutRow(
        **runs.row,
        held_out=runs.mean(lambda m: m.held_out),
        training=runs.mean(lambda m: m.training),
        gap=runs.mean(lambda m: m.gap),
        versus_reference=runs.less(runs.reference, lambda m: m.held_out),
        training_versus_reference=runs.less(runs.reference, lambda m: m.training),
        gap_versus_reference=runs.less(runs.reference, lambda m: m.gap),
    )
