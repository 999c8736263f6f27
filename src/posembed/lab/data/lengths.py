"""The lengths of training sequences, drawn from a distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from posembed.calls import unknown
from posembed.errors import DataError
from posembed.files import reason
from posembed.words import brief

if TYPE_CHECKING:
    import torch

Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (length in tokens, number of sequences), the lengths ascending."""

FULL = "full"
WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda length: 1.0,
    "short": lambda length: 1 / length,
}
"""The probability of each length from 1 to the training length, up to a factor. "short" is uniform on a log scale: half
of the sequences are no longer than about the square root of the training length."""
NAMES = (FULL, *WEIGHTS)
EXPECTED = "one length per line, or a length and a count"
LONGEST_NUMBER = 15


@dataclass(frozen=True)
class TrainLengths:
    """A distribution of lengths: ``weights`` (not normalized) of ``lengths`` in tokens, ascending."""

    lengths: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(map(mul, self.lengths, self.weights)) / math.fsum(self.weights)

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draws ``count`` independent lengths, (count,) int64."""
        import torch

        weights = torch.tensor(self.weights, dtype=torch.float64)
        return torch.tensor(self.lengths)[torch.multinomial(weights, count, replacement=True, generator=generator)]


def distribution(name: str | None, counts: Counts, train_length: int) -> TrainLengths | None:
    """Returns the distribution that ``counts`` give or, without counts, that ``name`` gives. None means that all
    sequences have the training length. Longer lengths count as the training length.

    Raises:
        ArgumentError: a name that is not in ``NAMES``, without counts.
    """
    if counts:
        cut: Counter[int] = Counter()
        for length, count in counts:
            cut[min(length, train_length)] += count
        return TrainLengths(tuple(cut), tuple(map(float, cut.values())))
    if name in (None, FULL):
        return None
    if name not in WEIGHTS:
        raise unknown("training lengths", name, NAMES)
    every = range(1, train_length + 1)
    return TrainLengths(tuple(every), tuple(map(WEIGHTS[name], every)))


def counts_of(name: str) -> Counts:
    """Reads the file ``name``: pairs (length, count). Names in ``NAMES`` have none.

    Raises:
        ArgumentError: a name that is neither known nor a file.
        DataError: a file that cannot be read, or that holds anything but lengths and counts.
    """
    if name in NAMES:
        return ()
    path = Path(name).expanduser()
    if not path.is_file():
        raise unknown("training lengths", name, NAMES, also=f", or a file with {EXPECTED}")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}; give a file with {EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8; give a file with {EXPECTED}") from error
    found: Counter[int] = Counter()
    for number, line in enumerate(lines, start=1):
        if words := line.split():
            length, count = _length_and_count(words, f"{path}, line {number}")
            found[length] += count
    if not found.total():
        raise DataError(f"{path} holds no training lengths; give a file with {EXPECTED}")
    return tuple(sorted((length, count) for length, count in found.items() if count))


def _length_and_count(words: Sequence[str], where: str) -> tuple[int, int]:
    numbers = [int(w) if w.isascii() and w.isdigit() and len(w) <= LONGEST_NUMBER else -1 for w in words]
    if len(numbers) > 2 or min(numbers) < 0 or numbers[0] < 1:
        raise DataError(
            f"{where}: expected {EXPECTED} (whole numbers, the length at least 1), got {brief(' '.join(words), 60)!r}"
        )
    return numbers[0], numbers[1] if len(numbers) == 2 else 1
