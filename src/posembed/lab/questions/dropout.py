"""How much dropout should follow the sum of tokens and positions?"""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from typing import Any

from posembed.errors import ArgumentError
from posembed.lab.found import Found, model_size
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.tasks.amounts_specs import (
    GAP,
    HELD_OUT,
    TRAINING_TEXT,
    DropoutSpec,
    amount_in_words,
    canonical_amount,
    share_or_tokens,
    times_read,
)
from posembed.lab.tasks.text_specs import task_on_text


class Dropout(TrainedQuestion):
    name = "dropout"
    Spec = DropoutSpec
    metrics = (HELD_OUT, dataclasses.replace(TRAINING_TEXT, better="low"), GAP)

    def canonical(self, text: str) -> str:
        return f"{Decimal(text).normalize():f}" if is_rate(text) else text

    def check_name(self, name: str) -> None:
        if not is_rate(name):
            raise ArgumentError(f"rates: expected numbers of at least 0 and below 1, such as 0,0.1,0.3; got {name!r}")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.amounts import DropoutAfterTheSum

        share_or_tokens(chosen["amount"])
        chosen["amount"] = canonical_amount(chosen["amount"])
        return task_on_text(DropoutAfterTheSum, chosen)

    def about(self, found: Found) -> str:
        spec = found.spec
        tokens = next((each.measurements.train_tokens for each in found.results if each.measurements is not None), None)
        often = "" if tokens is None else f", which it reads {times_read(spec.tokens_read / tokens)}"
        return (
            f"Each run trains the same small Transformer ({model_size(spec)}) on {amount_in_words(spec.amount)} of "
            f"{spec.data}{often}, in {spec.steps:,} steps with {spec.sequences_in_words} (tokenizer: "
            f"{spec.tokenizer}). Only the dropout after the sum of tokens and positions differs; the dropout elsewhere "
            f"is {spec.dropout:g}. Both losses are measured without dropout, on equally many tokens."
        )


def is_rate(text: str) -> bool:
    return re.fullmatch(r"0?\.\d{1,15}|0", text, re.ASCII) is not None
