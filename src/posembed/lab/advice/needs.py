"""What a person needs of a position encoding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from posembed.errors import ArgumentError

Grid = tuple[int, int]


@dataclass(frozen=True)
class Held:
    """A checkpoint, as far as its positions go."""

    length: int | None
    """Usable positions of its learned table; None where it has none (RoPE, ALiBi, relative biases)."""
    grid: Grid | None = None
    """The places of its table, where they are a grid."""
    source: str = ""
    findings: tuple[str, ...] = ()
    """What an inspection found wrong with the table."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Checked as it is made.

    Args:
        train_length: tokens of a training sequence; of an image, its patches.
        longest: the most tokens ever needed, at least train_length; None for no limit.
        width, vocabulary, heads: of the model; without a token table, as of images, a vocabulary of 0.
        grid, longest_grid: (height, width) in patches, where positions are a grid and not a sequence.
        fetch_far: whether a token must be found from far back, and not just its like predicted.
        checkpoint: of a model that is there already.

    Raises:
        ArgumentError: needs that contradict each other.
    """

    train_length: int
    longest: int | None
    width: int = 768
    vocabulary: int = 50_257
    heads: int = 12
    grid: Grid | None = None
    longest_grid: Grid | None = None
    fetch_far: bool = False
    checkpoint: Held | None = None

    def __post_init__(self) -> None:
        sizes = {"the training length": self.train_length, "the width": self.width, "the heads": self.heads}
        for name, size in sizes.items():
            if size < 1:
                raise ArgumentError(f"{name} must be at least 1, got {size}")
        if self.vocabulary < 0:
            raise ArgumentError(f"the vocabulary cannot be negative, got {self.vocabulary}")
        if self.width % self.heads:
            raise ArgumentError(
                f"width {self.width} is not divisible by {self.heads} heads; "
                f"try a width of {self.heads * max(self.width // self.heads, 1)}"
            )
        if self.longest is not None and self.longest < self.train_length:
            raise ArgumentError(
                f"the longest length, {self.longest:,}, is below the training length of {self.train_length:,}; "
                "give the longest that will ever be needed, training included"
            )
        self._check_grids()

    def _check_grids(self) -> None:
        if self.grid is None:
            if self.longest_grid is not None:
                raise ArgumentError("a longest grid needs the grid that is trained on; give both, or a sequence")
            if self.checkpoint is not None and self.checkpoint.grid is not None:
                raise ArgumentError(
                    "the checkpoint's positions are a grid of {} x {}; give the grid that you train on".format(
                        *self.checkpoint.grid
                    )
                )
            return
        longest = self.longest_grid or self.grid
        if min(*self.grid, *longest) < 1 or math.prod(self.grid) != self.train_length:
            raise ArgumentError(
                f"a grid of {shown(self.grid)} has {math.prod(self.grid):,} places, and the training length is "
                f"{self.train_length:,}; special tokens are not counted"
            )
        if longest[0] < self.grid[0] or longest[1] < self.grid[1]:
            raise ArgumentError(
                f"the longest grid, {shown(longest)}, is smaller one way than that trained on, {shown(self.grid)}"
            )
        if self.longest != math.prod(longest):
            raise ArgumentError(
                f"the longest length must be that of the longest grid, {shown(longest)}: {math.prod(longest):,} "
                f"places; got {'no limit' if self.longest is None else f'{self.longest:,}'}"
            )
        if self.checkpoint is not None and self.checkpoint.length is not None and self.checkpoint.grid is None:
            raise ArgumentError(
                f"the checkpoint's table is a sequence of {self.checkpoint.length:,}, and the needs are of a grid"
            )

    @property
    def fixed(self) -> bool:
        """Never longer than in training."""
        return self.longest == self.train_length if self.grid is None else self.longest_grid in (None, self.grid)

    @property
    def largest_grid(self) -> Grid | None:
        return self.longest_grid or self.grid


def shown(grid: Grid) -> str:
    return f"{grid[0]} x {grid[1]}"
