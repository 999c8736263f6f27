"""The settings of learning from text of drawn lengths, and what is measured by position and by row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from posembed.lab.data.lengths import TrainLengths, distribution
from posembed.lab.metrics import Measured, by_x, metrics
from posembed.lab.tasks.text_specs import LanguageSpec
from posembed.measure.frame import Value
from posembed.measure.metrics import Metric

LEARNED = "learned"
BAND_ENDS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""The ends of the bands of positions, as shares of the training length."""
LOSS, TRAINED, SHARE, TEXT, OWN, LATER, NEIGHBOUR, ATTENTION = metrics("rows")
AT = {
    metric: dataclasses.replace(metric, name=f"{metric.name}, at each position")
    for metric in (LOSS, TRAINED, TEXT, NEIGHBOUR, ATTENTION)
}
"""The metrics that are also kept for each position."""


def measured_rows(
    *,
    loss: Sequence[float],
    trained: Sequence[int],
    attention: Sequence[float],
    text_increase: Mapping[int, float],
    own_increase: Mapping[int, float],
    neighbour_increase: Mapping[int, float],
    sequences: int,
) -> Measured:
    """Returns each metric as the mean over each band of positions, and some metrics also at each position.

    Args:
        loss: by position p, 0 to L - 1: on held-out text in windows of L tokens, the loss of the token predicted at p,
            in nats.
        trained: by position: the number of training sequences that had a token to predict at p, which is how often row
            p was trained.
        attention: by position: the share of all attention that p receives, a mean over layers and heads. They sum to 1.
        text_increase: the increase in the loss of a text of L tokens, in nats, if row p alone is replaced with the mean
            row. This and the next two are empty for encodings other than "learned".
        own_increase: the same for the token predicted at p.
        neighbour_increase: the increase in the loss of the text if row p is replaced with row p + 1 (the last row: with
            the row before it), as if the position were off by one.
        sequences: the number of training sequences.
    """
    known: dict[Metric, Mapping[int, float | None]] = {
        LOSS: dict(enumerate(loss)),
        TRAINED: dict(enumerate(trained)),
        TEXT: text_increase,
        OWN: own_increase,
        LATER: later_increase(len(loss), text_increase, own_increase),
        NEIGHBOUR: neighbour_increase,
        ATTENTION: {p: share / even_attention(p, len(loss)) for p, share in enumerate(attention)},
    }
    values: list[Value] = []
    for metric, by_position in known.items():
        for first, last in bands(len(loss)).items() if by_position else ():
            found = [value for p in range(first, last + 1) if (value := by_position.get(p)) is not None]
            mean = math.fsum(found) / len(found) if found else None
            values.append(Value(metric.name, mean, first))
            if metric is TRAINED and mean is not None:
                values.append(Value(SHARE.name, mean / sequences, first))
        if metric in AT:
            values += by_x({AT[metric]: by_position})
    return Measured(tuple(values))


def later_increase(
    length: int, text_increase: Mapping[int, float], own_increase: Mapping[int, float]
) -> dict[int, float | None]:
    """Returns the mean increase in the loss per token predicted after each position, if its row is replaced. None for
    the last row."""
    increases = {p: (increase - own_increase[p], length - 1 - p) for p, increase in text_increase.items()}
    return {p: increase / later if later else None for p, (increase, later) in increases.items()}


def even_attention(position: int, length: int) -> float:
    """Returns the attention that ``position`` receives from heads that attend equally to all tokens they see."""
    return math.fsum(1 / seen for seen in range(position + 1, length + 1)) / length


@dataclass(frozen=True, kw_only=True)
class RowSpec(LanguageSpec):
    COMPARED: ClassVar[str] = "train_lengths"

    train_lengths: str | None = None
    """The name that is compared, such as "short" or "short+sinusoidal"."""

    @cached_property
    def lengths_drawn(self) -> TrainLengths | None:
        return distribution(self.lengths_name, self.train_length_counts, self.train_length)

    @property
    def lengths_name(self) -> str:
        """The name of the distribution of lengths, such as "short" for "short+sinusoidal"."""
        return self.compared if self.encoding == LEARNED else self.compared.removesuffix(f"+{self.encoding}")

    def shared_settings(self) -> dict[str, Any]:
        own = ("encoding", "train_length_counts")
        return {name: value for name, value in super().shared_settings().items() if name not in own}


def bands(length: int) -> dict[int, int]:
    """Returns the last position of each band, by its first position: {0: 7, 8: 15, 16: 31, 32: 47, 48: 63} for 64."""
    ends = list(dict.fromkeys(max(round(share * length), 1) for share in BAND_ENDS))
    return dict(zip([0, *ends[:-1]], [end - 1 for end in ends], strict=True))
