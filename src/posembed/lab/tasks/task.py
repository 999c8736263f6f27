"""The interface between the training loop and a task: its data, model, loss and measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from posembed.lab.metrics import Measured
from posembed.lab.model import PositionedModel
from posembed.lab.runs.spec import SpecT, TrainingSpec
from posembed.layers.base import PositionEncoding
from posembed.nn.encodings import Sizes, encoding_by_name
from posembed.torch_internals import WithoutDraws

if TYPE_CHECKING:
    from accelerate import Accelerator

SEEDS_APART, PROCESSES_APART = 2654435761, 2246822519
"""Odd numbers whose multiples spread evenly over 2^32, so that two seeds or processes do not share a torch seed."""


class Task(ABC, Generic[SpecT]):
    """The data, model, loss and measurements of a question. A task can be pickled and sent to other machines."""

    description: str
    """Describes the data and their sizes for human readers."""

    def check(self, spec: SpecT) -> None:
        """Raises ArgumentError or DataError for a spec that cannot run. ``train.check`` also builds the model."""

    def build(self, spec: SpecT) -> PositionedModel:
        """Builds the model. The seed determines its weights. Outside the encoding, they are equal for all encodings."""
        torch.manual_seed(spec.seed)
        encoding = self.encoding(spec)
        torch.manual_seed(spec.seed)
        return self.model(spec, encoding)

    def try_build(self, spec: SpecT) -> None:
        """Builds the model without drawing its weights. Raises ArgumentError for sizes that do not fit."""
        with WithoutDraws():
            self.build(spec)

    def encoding(self, spec: SpecT) -> PositionEncoding:
        """Builds the encoding that the spec names."""
        return build_encoding(spec)

    @abstractmethod
    def model(self, spec: SpecT, encoding: PositionEncoding) -> PositionedModel:
        """Builds the model around the given encoding."""

    @abstractmethod
    def draw(self, spec: SpecT, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns some rows of a step's batch, on the CPU. The batch depends only on the spec and the step."""

    @abstractmethod
    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """Returns the mean loss of a batch, in nats. ``model`` comes from ``build`` and may be wrapped."""

    @abstractmethod
    def measure(self, spec: SpecT, model: PositionedModel, accelerator: Accelerator) -> Measured:
        """Measures the trained model, which is in eval mode. Every process calls this and gets the same values."""

    def attention(self, spec: SpecT, model: PositionedModel, device: torch.device) -> Tensor | None:
        """Returns the mean attention weights by distance (layers, H, L), or None if not measured. Only the main process
        calls this."""
        return None

    @abstractmethod
    def tokens_measured(self, spec: SpecT) -> int:
        """Estimates how many tokens ``measure`` feeds to the model, to predict the time."""


def build_encoding(spec: TrainingSpec, *, grid: tuple[int, int] | None = None, causal: bool = True) -> PositionEncoding:
    """Builds the encoding that a spec names. ``grid``: for images, (height, width) in patches."""
    sizes = Sizes(
        dim=spec.width,
        heads=spec.heads,
        max_len=spec.train_length,
        longest=spec.longest,
        window=spec.window or None,
        ring=spec.ring or None,
        rope_factors=spec.rope_factors,
        grid=grid,
        causal=causal,
        dropout=spec.dropout,
        layers=spec.layers,
    )
    return encoding_by_name(spec.encoding, sizes)


def draw_seed(spec: TrainingSpec, step: int) -> int:
    """Returns the seed of Python's generators for one step. It is the same for every encoding, and differs by seed and
    step."""
    return spec.seed * 2**32 + step


def torch_seed(spec: TrainingSpec, step: int, process: int = 0) -> int:
    """Returns the seed of torch's generators for one step. It is the same for every encoding, and differs by seed, step
    and process. It is below 2^32, because torch's generators on CPUs ignore all higher bits."""
    return (spec.seed * SEEDS_APART + process * PROCESSES_APART + step) % 2**32
