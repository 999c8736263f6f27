"""How much training text does each encoding need?"""

from __future__ import annotations

from typing import Any

from posembed.lab.found import Axis, Found, Results, model_size
from posembed.lab.question import Loaded, TrainedQuestion
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.amounts_specs import (
    AMOUNTS,
    GAP,
    HELD_OUT,
    TRAINING_TEXT,
    DataSpec,
    canonical_amount,
    require_different,
    share_or_tokens,
    times_read,
)
from posembed.lab.tasks.text_specs import task_on_text
from posembed.measure.metrics import Metric


class DataEfficiency(TrainedQuestion):
    name = "data-efficiency"
    Spec = DataSpec
    metrics = (HELD_OUT, TRAINING_TEXT, GAP)
    varied_help = f"Amounts of training text to compare, separated by commas: {AMOUNTS}."

    def canonical(self, text: str) -> str:
        return canonical_amount(text)

    def check_value(self, value: str) -> None:
        share_or_tokens(value)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.amounts import TrainingOnLess

        task: TrainingOnLess[DataSpec]
        task, found = task_on_text(TrainingOnLess, chosen)
        require_different(self.values(chosen), len(task.corpus.train))
        with_default_window(chosen)
        return task, found

    def shown(self, results: Results) -> Results:
        """Returns the runs with the largest amount that any run succeeded with."""
        tokens = [0 if result.measurements is None else result.measurements.train_tokens for result in results]
        return [result for result, each in zip(results, tokens, strict=True) if each == max(tokens) > 0]

    def axis(self, results: Results, metric: Metric) -> Axis:
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
