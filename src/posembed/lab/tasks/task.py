"""What a model of the lab learns and is measured on, as the one interface that training asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from posembed.lab.model.decoder import PositionedModel
from posembed.lab.runs.spec import TrainingSpec

if TYPE_CHECKING:
    from accelerate import Accelerator

SpecT = TypeVar("SpecT", bound=TrainingSpec)
MeasuredT = TypeVar("MeasuredT")


class Task(ABC, Generic[SpecT, MeasuredT]):
    """One task: its data, its model, its loss, its measurements. Pickles, so that other machines can run it.

    Its spec and its measurements are frozen dataclasses of plain values: one line of a results file holds both.
    """

    Spec: ClassVar[type[Any]]
    Measured: ClassVar[type[Any]]

    description: str
    """What it learns from, for people to read: lines with their sizes."""

    @abstractmethod
    def check(self, spec: SpecT) -> None:
        """Refuse, before anything trains, what could not be trained or measured. That the model can be built is
        looked at elsewhere.

        Raises:
            ArgumentError, DataError: what it is.
        """

    @abstractmethod
    def build(self, spec: SpecT) -> PositionedModel:
        """The model, its weights decided by the spec alone."""

    @abstractmethod
    def draw(self, spec: SpecT, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """The step's batch, or these rows of it, on the CPU, decided by the spec and the step alone."""

    @abstractmethod
    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The mean loss of what was drawn, in nats. model: what ``build`` made, perhaps wrapped."""

    @abstractmethod
    def measure(self, spec: SpecT, model: PositionedModel, accelerator: Accelerator) -> MeasuredT:
        """Called in every process, with the trained model in eval mode; the same values in each."""

    def attention(self, spec: SpecT, model: PositionedModel, device: torch.device) -> Tensor | None:
        """Where the heads of the trained model look, (layers, H, L): the mean weight by distance. Called in the
        main process alone. None where the task has no text to look at."""
        return None

    @abstractmethod
    def tokens_measured(self, spec: SpecT) -> int:
        """About how many tokens ``measure`` feeds to the model: for a guess of the time."""


def draw_seed(spec: TrainingSpec, step: int) -> int:
    """What a step draws with, so that it needs no state: the same for every encoding."""
    return spec.seed * 2**32 + step
