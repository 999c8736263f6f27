"""Next-token prediction with a learned table at the input, from different initial values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from posembed.calls import unknown
from posembed.lab import measure
from posembed.lab.model.decoder import PositionedModel
from posembed.lab.questions.inits import InitMeasurements, InitSpec
from posembed.lab.tasks.language import TaskOnText, shared_loss
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables import fill
from posembed.tables.fill import root_mean_square
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.spectrum import table_spectrum

if TYPE_CHECKING:
    from accelerate import Accelerator

SCALED = ("normal", "sinusoidal")
PLAIN = ("xavier", "sinusoidal", "zero")


def initial_table(init: str, length: int, dim: int) -> Tensor:
    """Returns the table (length, dim) of this name: "normal-STD" or "sinusoidal-STD" with any root mean square STD,
    or "xavier", "zero", "sinusoidal".

    Raises:
        ArgumentError: an unknown name.
    """
    if init in PLAIN:
        return fill.initial_table(init, length, dim)
    kind, _, scale = init.partition("-")
    if kind not in SCALED or not re.fullmatch(r"\d+(\.\d+)?|\.\d+", scale):
        scaled = " and ".join(f"{name}-STD" for name in SCALED)
        raise unknown("initial values", init, PLAIN, also=f", and {scaled} with a number, as normal-0.02")
    return fill.initial_table(kind, length, dim, std=float(scale))


class InitialValues(TaskOnText[InitSpec, InitMeasurements]):
    """Next-token prediction with a learned table at the input; measures what becomes of its initial values."""

    def check(self, spec: InitSpec) -> None:
        initial_table(spec.init, 1, spec.width)
        self.check_lengths(spec, (spec.train_length,))

    def encoding(self, spec: InitSpec) -> LearnedPositionalEmbedding:
        start = initial_table(spec.init, spec.train_length, spec.width)
        return LearnedPositionalEmbedding(max_len=spec.train_length, dim=spec.width, dropout=spec.dropout, init=start)

    def measure(self, spec: InitSpec, model: PositionedModel, accelerator: Accelerator) -> InitMeasurements:
        text = measure.windows(self.corpus.held_out, spec.train_length, spec.test_tokens)
        loss = shared_loss(model, accelerator)(text).mean().item()
        before, after = (m.encoding.get_parameter("weight").detach().cpu() for m in (self.build(spec), model))
        bytes_each = measure.bytes_per_token(
            self.corpus.held_out_bytes, spec.train_length, spec.train_length, spec.test_tokens
        )
        return measurements(before, after, loss=loss, bytes_per_token=bytes_each)

    def tokens_measured(self, spec: InitSpec) -> int:
        return spec.test_tokens


def measurements(before: Tensor, after: Tensor, *, loss: float, bytes_per_token: float | None) -> InitMeasurements:
    """Measures a table's rows (N, D) before and after training."""
    cosine = F.cosine_similarity(before.double().flatten(), after.double().flatten(), dim=0).item()
    return InitMeasurements(
        loss=loss,
        bytes_per_token=bytes_per_token,
        scale_before=root_mean_square(before),
        scale_after=root_mean_square(after),
        moved=root_mean_square(after - before),
        cosine=cosine if before.any() and after.any() else None,
        effective_rank_before=table_spectrum(before).effective_rank,
        effective_rank_after=table_spectrum(after).effective_rank,
        neighbour_cosine_before=_mean_neighbour_cosine(before),
        neighbour_cosine_after=_mean_neighbour_cosine(after),
    )


def _mean_neighbour_cosine(rows: Tensor) -> float | None:
    return neighbour_cosine(rows).mean().item() if rows.any() and len(rows) > 1 else None
