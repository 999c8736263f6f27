"""Next-token prediction with a learned table, measured position by position and row by row."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor

from posembed.lab import attention, measure
from posembed.lab.metrics import Measured
from posembed.lab.model import PositionedModel
from posembed.lab.tasks.language import TaskOnText, shared_loss
from posembed.lab.tasks.row_specs import BAND_ENDS, LEARNED, RowSpec, measured_rows
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.importance import increases as row_increases

MOST_ROWS = 64
"""The largest number of rows to replace, one at a time, because each needs a pass over the text."""
SHARE_OF_TEXT = 1 / 8
"""The share of the measured text on which rows are replaced."""


class TrainedRows(TaskOnText[RowSpec]):
    """Next-token prediction with drawn training lengths; measures each position, and the effect of each row."""

    def measure(self, spec: RowSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        loss = shared_loss(model, accelerator)
        text = measure.windows(self.corpus.held_out, spec.train_length, spec.test_tokens)
        some = measure.windows(self.corpus.held_out, spec.train_length, tokens_replaced(spec))
        increases: dict[str, dict[int, Tensor]] = {"mean": {}, "neighbour": {}}
        if type(model.encoding) is LearnedPositionalEmbedding:
            weight, measured = model.encoding.weight.detach(), rows_replaced(spec.train_length)
            for instead in increases:
                for row, increase in row_increases(weight, lambda: loss(some), measured, instead):
                    increases[instead][row] = increase.mean(dim=0)
        return measured_rows(
            loss=tuple(loss(text).mean(dim=0).tolist()),
            trained=self.times_trained(spec, model),
            attention=tuple(attention.received(model, some[:, :-1], accelerator.device).mean(dim=(0, 1)).tolist()),
            text_increase={row: increase.sum().item() for row, increase in increases["mean"].items()},
            own_increase={row: increase[row].item() for row, increase in increases["mean"].items()},
            neighbour_increase={row: increase.sum().item() for row, increase in increases["neighbour"].items()},
            sequences=spec.steps * spec.batch,
        )

    def times_trained(self, spec: RowSpec, model: PositionedModel) -> tuple[int, ...]:
        """Counts the training sequences that had a token to predict at each position. Repeats the draws of the run."""
        if spec.lengths_drawn is None:
            return (spec.steps * spec.batch,) * spec.train_length
        positions, reached = torch.arange(spec.train_length), torch.zeros(spec.train_length, dtype=torch.int64)
        for step in range(spec.steps):
            *_, counts, _ = self.draw(spec, model, step)
            reached += (positions < counts.unsqueeze(1)).sum(dim=0)
        return tuple(reached.tolist())

    def tokens_measured(self, spec: RowSpec) -> int:
        passes = 2 * len(rows_replaced(spec.train_length)) if spec.encoding == LEARNED else 0
        return spec.test_tokens + passes * tokens_replaced(spec)


def tokens_replaced(spec: RowSpec) -> int:
    return max(int(spec.test_tokens * SHARE_OF_TEXT), spec.train_length)


def rows_replaced(length: int) -> list[int]:
    """Returns the rows to replace: all rows of a short table. Of a longer one, MOST_ROWS: a quarter of them in its
    first eighth, the others after it. Both are spread evenly, so that the mean over a band stands for all its rows."""
    if length <= MOST_ROWS:
        return list(range(length))
    early, end = MOST_ROWS // 4, max(MOST_ROWS // 4, round(length * BAND_ENDS[0]))
    late = torch.linspace(end, length - 1, MOST_ROWS - early).round().int().tolist()
    return [*(end * index // early for index in range(early)), *late]
