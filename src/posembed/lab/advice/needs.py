"""A user's requirements for a position encoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.runs.spec import default_window, option, options, require_divisible

if TYPE_CHECKING:
    from posembed.nn.encodings import Use

LAYERS = 12
"""The number of layers that a suggested window is for."""

Grid = tuple[int, int]
"""(height, width) in patches."""


@dataclass(frozen=True)
class Existing:
    """The positions of an existing checkpoint."""

    length: int | None
    """The number of usable positions in its learned table; None without a table (RoPE, ALiBi, relative biases)."""
    grid: Grid | None = None
    source: str = ""
    findings: tuple[str, ...] = ()
    """Problems that an inspection found in the table."""

    @property
    def reach(self) -> str:
        """The size of its table, in words."""
        return shown(self.grid) if self.grid is not None else f"{self.length:,}"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The requirements for an encoding. For images, both lengths count patches, and the vocabulary is 0.

    Raises ArgumentError for needs that contradict each other.
    """

    length: int = option("Tokens per training sequence.")
    longest: int | None = option("The longest sequence you will ever need; none for no limit. Default: the length.")
    width: int = option("Width of the model.", default=768)
    vocabulary: int = option("Rows of the token table; 0 for images.", default=50_257)
    heads: int | None = option("Attention heads. Default: one per 64 dimensions of the width.", default=None)
    grid: Grid | None = option("Images: the grid of patches in training, HEIGHTxWIDTH.", default=None)
    longest_grid: Grid | None = option("Images: the largest grid you will ever need. Default: the grid.", default=None)
    far: bool = option("Whether the model must retrieve tokens from far back.", default=False)
    encoder: bool = option("Whether the model reads in both directions, like BERT.", default=False)
    max_parameters: int | None = option("The most position parameters that you can afford; 0 for none.", default=None)
    checkpoint: Existing | None = option("An existing checkpoint: a folder, a file or a hub name.", default=None)

    def __post_init__(self) -> None:
        sizes = {"the training length": self.length, "the width": self.width}
        sizes |= {} if self.heads is None else {"the heads": self.heads}
        for name, size in sizes.items():
            if size < 1:
                raise ArgumentError(f"{name} must be at least 1, got {size}")
        if self.vocabulary < 0:
            raise ArgumentError(f"the vocabulary cannot be negative, got {self.vocabulary}")
        if self.max_parameters is not None and self.max_parameters < 0:
            raise ArgumentError(f"the most position parameters cannot be negative, got {self.max_parameters}")
        require_divisible(self.width, self.attention_heads)
        if self.longest is not None and self.longest < self.length:
            raise ArgumentError(
                f"the longest length, {self.longest:,}, is below the training length of {self.length:,}; "
                "give the longest that you will ever need, training included"
            )
        held = self.checkpoint
        if self.encoder and self.grid is not None:
            raise ArgumentError("encoder is for texts: image models always read in both directions; leave it out")
        if self.grid is None:
            if self.longest_grid is not None:
                raise ArgumentError("a longest grid needs the training grid; give both grids, or a sequence")
            if held is not None and held.grid is not None:
                raise ArgumentError(f"the checkpoint's positions are a grid of {held.reach}; give your own grid")
            return
        longest = self.longest_grid or self.grid
        lengths = {"training length": (self.grid, self.length), "longest length": (longest, self.longest)}
        for name, (grid, length) in lengths.items():
            if min(grid) < 1 or math.prod(grid) != length:
                raise ArgumentError(
                    f"a grid of {shown(grid)} has {math.prod(grid):,} patches, and the {name} is "
                    f"{'without limit' if length is None else f'{length:,}'}; do not count special tokens"
                )
        if longest[0] < self.grid[0] or longest[1] < self.grid[1]:
            raise ArgumentError(
                f"the longest grid, {shown(longest)}, is smaller in one direction than the training grid, "
                f"{shown(self.grid)}"
            )
        if held is not None and held.length is not None and held.grid is None:
            raise ArgumentError(f"the checkpoint's table is a sequence of {held.reach} positions; leave out the grid")

    @property
    def largest(self) -> tuple[int, ...] | None:
        """The sides of the longest grid, or a tuple with only the longest length; None without a limit."""
        if self.grid is not None:
            return self.longest_grid or self.grid
        return None if self.longest is None else (self.longest,)

    @property
    def fixed(self) -> bool:
        """Whether no sequence is ever longer than in training."""
        return self.largest == (self.grid or (self.length,))

    @property
    def has_table(self) -> bool:
        """Whether there is a checkpoint with a learned table."""
        return self.checkpoint is not None and self.checkpoint.length is not None

    @property
    def inside_table(self) -> bool:
        """Whether the checkpoint's table has a row for every position."""
        held = self.checkpoint
        if held is None or held.length is None or self.largest is None:
            return False
        return all(a <= b for a, b in zip(self.largest, held.grid or (held.length,), strict=True))

    @property
    def stretch(self) -> float:
        """The longest length as a multiple of the length of the checkpoint's table; 0 without a limit or a table."""
        held = None if self.checkpoint is None else self.checkpoint.length
        return self.longest / held if self.longest and held else 0.0

    @property
    def reach(self) -> str:
        """The longest grid or length, in words."""
        if self.largest is None:
            return "any length"
        return f"{self.longest:,} tokens" if self.grid is None else shown(self.largest)

    @property
    def factor(self) -> float:
        """The longest length as a multiple of the training length, or for images the longest side as a multiple of the
        same side in training; infinite without a limit."""
        if self.grid is not None:
            return max(longest / side for longest, side in zip(self.longest_grid or self.grid, self.grid, strict=True))
        return math.inf if self.longest is None else self.longest / self.length

    @property
    def use(self) -> Use:
        """The kind of model."""
        return "images" if self.grid is not None else "encoder" if self.encoder else "decoder"

    @property
    def attention_heads(self) -> int:
        """The given heads; by default the width / 64, or the next smaller divisor of the width."""
        if self.heads is not None:
            return self.heads
        return next(heads for heads in range(max(self.width // 64, 1), 0, -1) if self.width % heads == 0)

    @property
    def table(self) -> int:
        """The parameters of a learned table for the longest length (without a limit, for the training length)."""
        return (self.longest or self.length) * self.width

    @property
    def window(self) -> int:
        """The lab's default window for 12 layers and this training length, but at least 2."""
        return max(default_window(LAYERS, self.length), 2)

    def share(self, parameters: int) -> float | None:
        """Returns the share of ``parameters`` in the position and token parameters; None without a token table."""
        return parameters / (parameters + self.vocabulary * self.width) if self.vocabulary else None


def shown(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))


def needs_of(
    *,
    length: int | None = None,
    longest: int | Literal["none"] | None = None,
    grid: Grid | None = None,
    longest_grid: Grid | None = None,
    **others: Any,
) -> Needs:
    """Returns the needs. By default the longest length is the training length. For images, the lengths are the sizes
    of the grids and the vocabulary is 0. ``longest="none"`` means no limit."""
    known = options(Needs)
    if wrong := [name for name in others if name not in known]:
        raise unknown("need", wrong[0], known)
    if grid is not None:
        length = math.prod(grid) if length is None else length
        others = {"vocabulary": 0, **others}
    if length is None:
        raise ArgumentError("give --length, the tokens per training sequence, or --grid for images")
    if longest is None:
        longest = length if grid is None else math.prod(longest_grid or grid)
    end = None if longest == "none" else longest
    return Needs(length=length, longest=end, grid=grid, longest_grid=longest_grid, **others)
