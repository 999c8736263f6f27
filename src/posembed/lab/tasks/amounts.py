"""Next-token prediction on a part of the training text, measured on held-out text and on the part itself."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor

from posembed.errors import ArgumentError, DataError
from posembed.lab import measure
from posembed.lab.metrics import Measured
from posembed.lab.model import PositionedModel
from posembed.lab.tasks.amounts_specs import AmountSpec, DropoutSpec, measured_losses, tokens_of
from posembed.lab.tasks.language import TaskOnText, shared_loss
from posembed.lab.tasks.task import build_encoding
from posembed.layers.base import PositionEncoding

AmountT = TypeVar("AmountT", bound=AmountSpec)


class TrainingOnLess(TaskOnText[AmountT]):
    """Next-token prediction on one stretch of the training text. Held-out text is always the same."""

    def check(self, spec: AmountT) -> None:
        tokens = len(self.text(spec))
        if tokens <= spec.train_length:
            raise DataError(
                f"the amount {spec.amount} has {tokens:,} tokens, and a training length of {spec.train_length:,} needs "
                f"at least {spec.train_length + 1:,}; use a larger amount, or a shorter length"
            )
        super().check(spec)

    def text(self, spec: AmountT) -> Tensor:
        """Returns the stretch of training text (N,) that ``amount`` asks for. The seed decides where it starts. With
        the same seed, a smaller stretch lies inside a larger one."""
        text = self.corpus.train
        tokens = tokens_of(spec.amount, len(text))
        place = torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(spec.seed)).item()
        start = int(place * (len(text) - tokens))
        return text[start : start + tokens]

    def measured_windows(self, spec: AmountT) -> tuple[Tensor, Tensor]:
        """Returns windows (N, L + 1) of held-out text, and at most as many windows of the training stretch."""
        held_out = measure.windows(self.corpus.held_out, spec.train_length, spec.test_tokens)
        return held_out, measure.windows(self.text(spec), spec.train_length, len(held_out) * spec.train_length)

    def measure(self, spec: AmountT, model: PositionedModel, accelerator: Accelerator) -> Measured:
        loss = shared_loss(model, accelerator)
        held_out, training = (loss(windows).mean().item() for windows in self.measured_windows(spec))
        return measured_losses(held_out, training, len(self.text(spec)), by_amount=spec.VARIED is not None)

    def tokens_measured(self, spec: AmountT) -> int:
        return 2 * spec.test_tokens


class DropoutAfterTheSum(TrainingOnLess[DropoutSpec]):
    """Next-token prediction with dropout, at the spec's ``rate``, after the sum of tokens and positions."""

    def check(self, spec: DropoutSpec) -> None:
        super().check(spec)
        held_out, training = self.measured_windows(spec)
        if len(training) < len(held_out):
            raise ArgumentError(
                f"the gap compares as many tokens of training text as of held-out text, but the amount {spec.amount} "
                f"has {training[:, 1:].numel():,} tokens in whole windows and test_tokens {held_out[:, 1:].numel():,}; "
                "use a larger --amount, or fewer --test-tokens"
            )

    def encoding(self, spec: DropoutSpec) -> PositionEncoding:
        return build_encoding(dataclasses.replace(spec, dropout=float(spec.rate)))
