"""The module that stands in a transformers model in place of its position table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from posembed._version import __version__
from posembed.checkpoints.settings import set_in
from posembed.errors import ArgumentError
from posembed.integrations.attention import CURRENT, NAME
from posembed.integrations.forward_pass import ForwardPass, own_grid
from posembed.integrations.saved import described
from posembed.layers.base import PositionEncoding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding

ENDLESS = 2**40
NO_ROWS = torch.zeros(1, 0, 0, device="cpu")
"""Replaces a table that was a parameter: transformers initializes this tensor when loading a model."""
INTERPOLATES = "interpolate_pos_encoding"
"""The name of an image model's function that returns rows for images of any size, and of the argument that calls it."""


@dataclass(frozen=True)
class OldTable:
    """A description of the replaced table.

    Args:
        width: the width of its rows.
        prefix: the number of special tokens before the patches of an image.
        grid: (height, width), in patches, of the images that the model is built for; None for a sequence.
        patch: (height, width) of a patch in pixels. image: (height, width) of the images in pixels.
        field: the path of the config field that gives the length, whose value minus that length is ``beyond``, or the
            size of the images.
    """

    width: int
    prefix: int = 0
    grid: tuple[int, int] | None = None
    patch: tuple[int, int] | None = None
    image: tuple[int, int] | None = None
    field: tuple[str, ...] = ()
    beyond: int = 0

    def on_grid(self, grid: tuple[int, int]) -> OldTable:
        image = None if self.patch is None else (grid[0] * self.patch[0], grid[1] * self.patch[1])
        return self if grid == self.grid else replace(self, grid=grid, image=image)


class PositionSlot(nn.Module):
    """Replaces a model's position table, and returns the rows that its encoding adds to the input.

    Args:
        encoding: the encoding, which the model's attention also uses.
        old: a description of the replaced table.
        causal: whether token i sees only the tokens up to i.
    """

    def __init__(self, encoding: PositionEncoding, old: OldTable, *, causal: bool) -> None:
        super().__init__()
        self.encoding, self.old, self.causal = encoding, old, causal
        self.config: Any = None
        """The config of the model, which describes the encoding."""
        self.carried_by_keyword = True
        """Whether the model passes its ForwardPass to its attention, as ``try_out`` has seen."""

    @property
    def weight(self) -> Tensor:
        """A tensor (N, D) without data, from which some models read the number of positions."""
        return torch.empty(self.length or ENDLESS, self.old.width, device="meta")

    def table(self) -> Tensor | None:
        """Returns the learned rows of the encoding, or None."""
        return self.encoding.table()

    @property
    def length(self) -> int | None:
        """The number of positions of the encoding; None if it is unlimited."""
        encoding: PositionEncoding = self.encoding
        if isinstance(encoding, ExtendedPositionalEmbedding):
            return encoding.longest
        return encoding.max_len if isinstance(encoding, LearnedPositionalEmbedding) else None

    @property
    def patch(self) -> tuple[int, int] | None:
        return self.old.patch

    def belongs_to(self, model: nn.Module) -> bool:
        """Returns whether this is the encoding that a model's config describes, not that of another model inside it."""
        return getattr(model, "config", None) is self.config

    def record_in_config(self) -> None:
        """Writes the encoding, and its length or the size of its images, into the model's config, at the start and
        after a resize."""
        entry = {"version": __version__, "causal": self.causal, "encoding": described(self.encoding)}
        setattr(self.config, NAME, entry)
        value: int | tuple[int, int] | None = None
        if self.old.grid is None:
            value = None if self.length is None else self.length + self.old.beyond
        elif self.old.patch and (grid := own_grid(self.encoding, self.old.grid)) != self.old.grid:
            self.old = self.old.on_grid(grid)
            assert self.old.image is not None
            value = self.old.image
            if value[0] == value[1]:
                value = value[0]
            elif isinstance(reduce(getattr, self.old.field, self.config), int):
                value = None  # few models are built from two numbers; the encoding says its grid too
        if value is not None and self.old.field:
            set_in(self.config, self.old.field, value)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the rows of this pass, (1, L, D) or (B, L, D). The model's own position arguments are ignored."""
        tokens = current_pass()
        return tokens.rows_at_input(self.old.width, tokens.dtype)

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


def rows_of_pass(*args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``interpolate_pos_encoding`` in an image model's embeddings: returns the rows of the current pass."""
    rows: Tensor = current_pass().slot()
    return rows


def current_pass() -> ForwardPass:
    if (tokens := CURRENT.held[NAME]) is None:
        raise ArgumentError(
            "the module around a replaced position table was called by itself; call the model, or its base model"
        )
    return tokens
