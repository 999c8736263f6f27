"""The encodings of the lab's images by name, and what becomes of each on a finer grid. Add one line to add one.

An image is a token in front and its patches row by row; position 0 is the token's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from posembed.errors import ArgumentError
from posembed.lab.encodings import ENCODINGS
from posembed.lab.runs.spec import TrainingSpec
from posembed.layers.base import PositionEncoding
from posembed.layers.grid import LearnedGridEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.layers.sinusoidal import SinusoidalPositionalEmbedding
from posembed.layers.sinusoidal_grid import SinusoidalGridEmbedding
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table

Grid = tuple[int, int]
GRID_METHOD = "bicubic-antialias"
LINE_METHOD = "linear"


@dataclass(frozen=True)
class ImageEntry:
    build: Callable[[TrainingSpec, Grid], PositionEncoding]
    line: str
    """What it is, in one line."""
    regridded: str
    """What ``at_grid`` does to it."""


# Sinusoids at their own scale, as MAE's are: they cannot grow, and patches, projected by a trained matrix, can. At
# the scale that a learned table starts from they were drowned: a training loss of 1.2 where this scale gives .2.
IMAGE_ENCODINGS: dict[str, ImageEntry] = {
    "learned-1d": ImageEntry(
        lambda s, g: LearnedPositionalEmbedding(1 + g[0] * g[1], s.width, dropout=s.dropout),
        "one trained row per patch, with the patches in one line",
        "its line of rows is interpolated linearly to the new number of patches",
    ),
    "learned-2d": ImageEntry(
        lambda s, g: LearnedGridEmbedding(g, s.width, dropout=s.dropout),
        "one trained row per patch, with the rows in a grid",
        "its grid of rows is resized bicubically, with antialiasing, as timm does",
    ),
    "factorized": ImageEntry(
        lambda s, g: LearnedGridEmbedding(g, s.width, factorized=True, dropout=s.dropout),
        "a trained row for the height plus one for the width",
        "each of its two tables is resized along its side, as learned-2d is",
    ),
    "sinusoidal": ImageEntry(
        lambda s, g: SinusoidalPositionalEmbedding(s.width, dropout=s.dropout),
        "fixed sines and cosines of the patch's number in the line",
        "it goes on counting patches",
    ),
    "sinusoidal-2d": ImageEntry(
        lambda s, g: SinusoidalGridEmbedding(g, s.width, dropout=s.dropout),
        "fixed sines and cosines, half of the width for the column, half for the row",
        "it is evaluated between the old rows and columns",
    ),
    "none": ImageEntry(
        lambda s, g: NoPosition(),
        "no position: a bag of patches",
        "there is nothing to change",
    ),
}


def require_image_encoding(name: str) -> None:
    """Raise ArgumentError for a name that is not known, or of an encoding that only a sequence has."""
    if name in IMAGE_ENCODINGS:
        return
    choose = f"choose among {', '.join(IMAGE_ENCODINGS)}"
    if name.split("+")[0] in ENCODINGS:
        raise ArgumentError(f"{name!r} is of places in a sequence, and the patches of an image form a grid; {choose}")
    raise ArgumentError(f"unknown encoding {name!r} of images; {choose}")


def at_grid(encoding: PositionEncoding, old: Grid, new: Grid) -> PositionEncoding:
    """The trained encoding for images of another grid, as IMAGE_ENCODINGS says; the same one where it need not
    change. In eval mode, on the same device and of the same dtype; the old one is left as it was."""
    if new == old:
        return encoding
    match encoding:
        case LearnedPositionalEmbedding():
            cells = new[0] * new[1]
            rows = resize_table(
                encoding.weight.detach(), length=cells, method=LINE_METHOD, layout=TableLayout(prefix=1)
            )
            changed: PositionEncoding = LearnedPositionalEmbedding(1 + cells, encoding.dim, init=rows)
        case LearnedGridEmbedding(factorized=False):
            rows = resize_table(encoding.weight.detach(), grid=new, method=GRID_METHOD, layout=encoding.layout)
            changed = LearnedGridEmbedding(new, encoding.dim, init=rows)
        case LearnedGridEmbedding():
            changed = _factorized_at(encoding, new)
        case SinusoidalGridEmbedding():
            changed = SinusoidalGridEmbedding(new, encoding.dim, extent=old, scale=encoding.scale)
        case _:
            return encoding
    weight = next(encoding.parameters(), None)
    return changed.eval() if weight is None else changed.eval().to(weight.device, weight.dtype)


def _factorized_at(encoding: LearnedGridEmbedding, new: Grid) -> LearnedGridEmbedding:
    changed = LearnedGridEmbedding(new, encoding.dim, factorized=True)
    tables = {
        "height_weight": _line_at(encoding.height_weight.detach(), new[0]),
        "width_weight": _line_at(encoding.width_weight.detach(), new[1]),
        "special_weight": encoding.special_weight.detach(),
    }
    changed.load_state_dict(tables)
    return changed


def _line_at(rows: Tensor, length: int) -> Tensor:
    """Rows (N, D) of one side of a grid -> (length, D), as ``GRID_METHOD`` resizes that side of a whole grid."""
    # A grid one high: PyTorch's antialiasing gives wrong rows for one that comes out one wide (2.13, CPU).
    return resize_table(rows, grid=(1, length), method=GRID_METHOD, layout=TableLayout().on_grid(1, len(rows)))
