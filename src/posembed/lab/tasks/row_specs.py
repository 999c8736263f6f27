"""The settings of learning from text of drawn lengths, and what is measured by position and by row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from posembed.lab.data.lengths import TrainLengths, distribution
from posembed.lab.metrics import metrics
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


@dataclass(frozen=True)
class RowMeasurements:
    """Measurements of one run by position p, 0 to L - 1.

    loss: on held-out text in windows of L tokens, the loss of the token predicted at p, in nats.
    trained: the number of training sequences that had a token to predict at p, which is how often row p was trained.
    attention: the share of all attention that p receives, a mean over layers and heads. The shares sum to 1.
    text_increase: the increase in the loss of a text of L tokens, in nats, if row p alone is replaced with the mean
    row. own_increase: the same for the token predicted at p. neighbour_increase: the increase in the loss of the text
    if row p is replaced with row p + 1 (the last row: with the row before it), as if the position were off by one. All
    three are empty for encodings other than "learned".
    """

    loss: tuple[float, ...]
    trained: tuple[int, ...]
    attention: tuple[float, ...]
    text_increase: dict[int, float]
    own_increase: dict[int, float]
    neighbour_increase: dict[int, float]

    def later_increase(self, position: int) -> float | None:
        """The mean increase in the loss per token predicted after ``position``, if the row of ``position`` is replaced.
        None for the last row and for rows that were not replaced."""
        later = len(self.loss) - 1 - position
        if not later or position not in self.text_increase:
            return None
        return (self.text_increase[position] - self.own_increase[position]) / later

    def values(self) -> Iterator[Value]:
        """Yields each metric as the mean over each band of positions, and some metrics also at each position."""
        length, steps = len(self.loss), dict(enumerate(self.trained))
        later = {position: self.later_increase(position) for position in self.text_increase}
        known: dict[Metric, Mapping[int, float | None]] = {
            LOSS: dict(enumerate(self.loss)),
            TRAINED: steps,
            TEXT: self.text_increase,
            OWN: self.own_increase,
            LATER: later,
            NEIGHBOUR: self.neighbour_increase,
            ATTENTION: {position: self.attention_ratio(position) for position in range(length)},
        }
        for metric, by_position in known.items():
            for first, last in bands(length).items() if by_position else ():
                found = [value for p in range(first, last + 1) if (value := by_position.get(p)) is not None]
                yield Value(metric.name, math.fsum(found) / len(found) if found else None, first)
            if metric in AT:
                yield from (Value(AT[metric].name, value, position) for position, value in by_position.items())

    def attention_ratio(self, position: int) -> float:
        """The attention that ``position`` receives, relative to heads that attend equally to all tokens they see."""
        length = len(self.attention)
        even = math.fsum(1 / seen for seen in range(position + 1, length + 1)) / length
        return self.attention[position] / even


@dataclass(frozen=True, kw_only=True)
class RowSpec(LanguageSpec):
    COMPARED: ClassVar[str] = "train_lengths"
    Measured = RowMeasurements

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
