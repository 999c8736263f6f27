"""A user's requirements for a position encoding, and the properties of an encoding at the user's sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from annotated_types import Ge, Le
from pydantic import BeforeValidator

from posembed.errors import ArgumentError
from posembed.lab.runs.spec import default_window, require_divisible
from posembed.settings import Amount, Count, Settings, Sides, option

if TYPE_CHECKING:
    from posembed.nn.encodings import Use

LAYERS = 12
"""The number of layers to assume for a suggested window and for parameters of every layer."""

Grid = tuple[int, int]
"""(height, width) in patches."""

Size: TypeAlias = Annotated[int, Ge(1), Le(2**20)]
Limit: TypeAlias = Annotated[Count | None, BeforeValidator(lambda value: None if value == "none" else value)]
"""A number of tokens; "none" or None means no limit."""


@dataclass(frozen=True)
class Existing:
    """The positions of an existing checkpoint."""

    length: int | None
    """The number of usable positions in its learned table; None without a table (RoPE, ALiBi, relative biases)."""
    grid: Grid | None = None
    width: int | None = None
    source: str = ""
    findings: tuple[str, ...] = ()
    """Problems that an inspection found in the table."""
    kind: str = ""
    """The kind of model, a key of ``longer.FINDINGS``; "" for any other."""
    trained: int | None = None
    """The number of positions before a resize, if no fine-tuning is recorded after it; otherwise None."""
    fed: int | None = None
    """The most tokens that sentence-transformers feeds to the model at once; None if its settings have no limit."""
    rotates: bool = True
    """Whether it may have RoPE, which can be scaled, if it has no table."""

    @property
    def reach(self) -> str:
        """The size of its table, as text."""
        return shown(self.grid) if self.grid is not None else f"{self.length:,}"

    @property
    def takes(self) -> int | None:
        """The most tokens that the model takes at once: the smaller of ``length`` and ``fed``."""
        return min((each for each in (self.length, self.fed) if each is not None), default=None)

    def untrained(self, longest: int | None) -> bool:
        """Whether texts of this length read positions that a resize added, and that were perhaps never trained."""
        return self.trained is not None and (longest or math.inf) > self.trained

    @property
    def chunk(self) -> str:
        """The size of the chunks that the model takes, as text."""
        return self.reach if self.takes == self.length else f"{self.takes:,}"


@dataclass(frozen=True, kw_only=True)
class Needs(Settings):
    """The requirements for an encoding. For images, both lengths count patches, and the vocabulary is 0.

    Raises ArgumentError for needs that contradict each other.
    """

    length: Count = option("Tokens per training sequence.")
    longest: Limit = option("The longest sequence you will ever need; none for no limit.")
    width: Size = option("Width of the model.", default=768)
    vocabulary: Amount = option("Rows of the token table; 0 for images.", default=50_257)
    heads: Size | None = option("Attention heads. Default: one per 64 dimensions of the width.", default=None)
    grid: Sides | None = option("Images: the grid of patches in training, HEIGHTxWIDTH.", default=None)
    longest_grid: Sides | None = option("Images: the largest grid you will ever need. Default: the grid.", default=None)
    far: bool = option("Whether the model must retrieve tokens from far back.", default=False)
    encoder: bool = option("Whether the model reads in both directions, like BERT.", default=False)
    max_parameters: Amount | None = option(
        "The most position parameters that you can afford; 0 for none.", default=None
    )
    checkpoint: Existing | None = option("An existing checkpoint: a folder, a file or a hub name.", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        held = self.checkpoint
        if self.grid is not None:
            self._check_grids(self.grid)
        elif self.longest_grid is not None:
            raise ArgumentError("a longest grid needs the training grid; give both grids, or a sequence")
        elif held is not None and held.grid is not None:
            raise ArgumentError(f"the checkpoint's positions are a grid of {held.reach}; give your own grid")
        require_divisible(self.width, self.attention_heads)
        if self.longest is not None and self.longest < self.length:
            raise ArgumentError(
                f"the longest length, {self.longest:,}, is below the training length of {self.length:,}; "
                "give the longest that you will ever need, training included"
            )
        if held is not None and held.width not in (None, self.width):
            raise ArgumentError(
                f"the checkpoint's table has a width of {held.width}, not {self.width}; leave out --width"
            )

    def _check_grids(self, grid: Grid) -> None:
        longest, held = self.longest_grid or grid, self.checkpoint
        if self.encoder:
            raise ArgumentError("encoder is for texts: image models always read in both directions; leave it out")
        if longest[0] < grid[0] or longest[1] < grid[1]:
            raise ArgumentError(
                f"the longest grid, {shown(longest)}, is smaller in one direction than the training grid, {shown(grid)}"
            )
        lengths = {"training length": (grid, self.length), "longest length": (longest, self.longest)}
        for name, (sides, length) in lengths.items():
            if math.prod(sides) != length:
                raise ArgumentError(
                    f"a grid of {shown(sides)} has {math.prod(sides):,} patches, and the {name} is "
                    f"{'without limit' if length is None else f'{length:,}'}; do not count special tokens"
                )
        if held is not None and held.length is not None and held.grid is None:
            special = held.length - math.prod(grid) in (1, 2)
            remedy = f"a grid of {shown(grid)} needs {math.prod(grid)}; do not count special tokens"
            raise ArgumentError(
                f"the checkpoint's table is a sequence of {held.reach} positions; "
                f"{remedy if special else 'leave out the grid'}"
            )

    @property
    def far_in_texts(self) -> bool:
        """Whether tokens of a text must be retrieved from far back; chunks of a text cannot do that."""
        return self.far and self.grid is None

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
    def inside_table(self) -> bool:
        """Whether the checkpoint's table has a row for every position."""
        held = self.checkpoint
        if held is None or held.length is None or self.largest is None:
            return False
        if held.grid is not None:
            return self.largest == held.grid  # the rows of a smaller image would be those of other cells
        return self.largest[0] <= held.length

    @property
    def is_cut(self) -> bool:
        """Whether sentence-transformers truncates the longest text, although the model could read all of it."""
        held = self.checkpoint
        could = self.inside_table or (held is not None and held.length is None)
        return could and held is not None and held.fed is not None and (self.longest or math.inf) > held.fed

    @property
    def reach(self) -> str:
        """The longest grid or length, as text."""
        if self.largest is None:
            return "any length"
        return f"{self.longest:,} tokens" if self.grid is None else shown(self.largest)

    @property
    def factor(self) -> float:
        """The longest length as a multiple of the training length, or for images the larger of the two ratios between
        the sides of the grids; infinite without a limit."""
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


@dataclass(frozen=True)
class Candidate:
    """The properties of an encoding at the sizes of a user's needs.

    ends: "training" if it has no position beyond the training length, "longest" if its table has a row for every
    position up to the longest, None if its positions do not end. problem: why it cannot be built at these sizes.
    """

    name: str
    title: str
    parameters: int = 0
    window: int | None = None
    ends: Literal["training", "longest"] | None = None
    problem: str | None = None
