"""The settings of learning from text with a learned table, and the metrics of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL
from posembed.lab.tasks.text_specs import LanguageSpec
from posembed.settings import option

CAUSAL, MASKED = "causal", "masked"
LOSS, PERPLEXITY = metrics("held-out loss", "perplexity")
CHANGES = metrics("changes")
SCALE, SCALE_AFTER, MOVED, MOVED_TIMES, COSINE, RANK, RANK_AFTER, NEIGHBOURS, NEIGHBOURS_AFTER = CHANGES


@dataclass(frozen=True, kw_only=True)
class TableSpec(LanguageSpec):
    """Settings of a run that trains a learned table at the input of a language model."""

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
