"""How much training text does each encoding need, and how much dropout should follow the sum with positions?"""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from typing import Any

from posembed.errors import ArgumentError
from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.amounts_specs import (
    AMOUNTS,
    GAP,
    HELD_OUT,
    TRAIN_TOKENS,
    TRAINING_TEXT,
    DataSpec,
    DropoutSpec,
    amount_in_words,
    canonical_amount,
    require_different,
    share_or_tokens,
    times_read,
)
from posembed.measure.metrics import Metric


class DataEfficiency(TrainedQuestion):
    name = "data-efficiency"
    Spec = DataSpec
    varied_help = f"Amounts of training text to compare, separated by commas: {AMOUNTS}."

    def canonical(self, text: str) -> str:
        return super().canonical(canonical_amount(text))

    def load(self, chosen: dict[str, Any]) -> Loaded:
        for value in self.values(chosen):
            share_or_tokens(value)
        task: Any
        task, found = super().load(chosen)
        require_different(self.values(chosen), len(task.corpus.train))
        with_default_window(chosen)
        return task, found

    def shown(self, results: Results) -> Results:
        """Returns the runs with the largest amount that any run succeeded with."""
        tokens = [0 if each.measurements is None else each.measurements.sizes[TRAIN_TOKENS] for each in results]
        return [result for result, each in zip(results, tokens, strict=True) if each == max(tokens) > 0]

    def axis(self, results: Results, metric: Metric) -> Axis:
        amounts = sorted({each.measurements.sizes[TRAIN_TOKENS] for each in results if each.measurements is not None})
        tokens = results[0].spec.tokens_read
        return Axis(
            "tokens of training text",
            x=amounts[-1] if amounts else 0,
            base=amounts[-1] if len(amounts) > 1 else None,
            notes={amount: f"read {times_read(tokens / amount)}" for amount in amounts},
            told=tuple(amounts),
        )


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
        share_or_tokens(chosen["amount"])
        chosen["amount"] = canonical_amount(chosen["amount"])
        return super().load(chosen)

    def facts(self, found: Found) -> dict[str, Any]:
        spec = found.spec
        often = ""
        if found.measured is not None:
            often = f", which it reads {times_read(spec.tokens_read / found.measured.sizes[TRAIN_TOKENS])}"
        return {"amount": amount_in_words(spec.amount), "often": often}


def is_rate(text: str) -> bool:
    return re.fullmatch(r"0?\.\d{1,15}|0", text, re.ASCII) is not None
