"""The settings of learning from text with a learned table, and what is measured of the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL
from posembed.lab.tasks.text_specs import LanguageSpec
from posembed.measure.frame import Value
from posembed.settings import option

CAUSAL, MASKED = "causal", "masked"
LOSS, PERPLEXITY = metrics("held-out loss", "perplexity")
CHANGES = metrics("changes")
SCALE, SCALE_AFTER, MOVED, MOVED_TIMES, COSINE, RANK, RANK_AFTER, NEIGHBOURS, NEIGHBOURS_AFTER = CHANGES


@dataclass(frozen=True, kw_only=True)
class InitMeasurements:
    """The loss of a run, and its table before and after training. A cosine is None if a table is zero."""

    scale_before: float
    """The root mean square of the rows."""
    scale_after: float
    moved: float
    """The root mean square of the change in the rows."""
    cosine: float | None
    """The cosine between the whole table before and after training."""
    effective_rank_before: float
    effective_rank_after: float
    neighbour_cosine_before: float | None
    """The mean cosine of neighbouring rows."""
    neighbour_cosine_after: float | None
    loss: float
    """The loss on held-out text in windows of the training length, in nats per token."""
    bytes_per_token: float | None

    def values(self) -> Iterator[Value]:
        known = {
            LOSS: self.loss,
            PERPLEXITY: self.loss,
            SCALE: self.scale_before,
            SCALE_AFTER: self.scale_after,
            MOVED: self.moved,
            MOVED_TIMES: self.moved / self.scale_before if self.scale_before else None,
            COSINE: self.cosine,
            RANK: self.effective_rank_before,
            RANK_AFTER: self.effective_rank_after,
            NEIGHBOURS: self.neighbour_cosine_before,
            NEIGHBOURS_AFTER: self.neighbour_cosine_after,
        }
        yield from (Value(metric.name, value) for metric, value in known.items())


@dataclass(frozen=True, kw_only=True)
class TableSpec(LanguageSpec):
    """Settings of a run that trains a learned table at the input of a language model."""

    Measured = InitMeasurements

    encoding: str = "learned"
    init: str = ""
    """The name of the initial values, as in ``initial_table``."""


@dataclass(frozen=True, kw_only=True)
class InitSpec(TableSpec):
    COMPARED: ClassVar[str] = "init"

    model: Literal["causal", "masked"] | None = option(
        "causal, which predicts the next token, or masked, which sees both sides of hidden tokens as BERT does. "
        "Default: causal.",
        MODEL,
        default=None,
    )

    @property
    def objective(self) -> str:
        return self.model or CAUSAL


@dataclass(frozen=True, kw_only=True)
class ByTaskSpec(TableSpec):
    COMPARED: ClassVar[str] = "task"

    task: str = ""
    """A name in ``lab.tasks.objectives``."""
    init: str = option(
        "Initial values of the tables, the same for all tasks of a seed: normal-STD, xavier, zero, sinusoidal or "
        "sinusoidal-STD.",
        MODEL,
    )

    @property
    def objective(self) -> str:
        return self.task
