"""The idea in one drawing: token rows, plus the row of each position, and no row past the end of the table."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.images.grid import LearnedGridEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.plots.canvas import draws, panels_for, title_of
from posembed.plots.heat import strongest
from posembed.plots.source import Rows, Source, rows_of
from posembed.plots.style import INK, MUTED, RULE, SERIES, TEXT, WIDTH
from posembed.tables.fill import sinusoidal_table

WORDS = ("the", "dog", "bites", "the", "man")
PAST = "again"
CELLS = 12
"""The most dimensions that are drawn."""
TOKEN, ID, TABLE, SUM, WIDE = 66.0, 194.0, 216.0, 346.0, 90.0
"""Where the columns begin, and how wide rows are, in points."""
PITCH, THICK, TOP = 28, 18, 44
WALL = SERIES[1]


@draws
def idea(
    table: Source | None = None, *, key: str | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draws the idea of a position table: each token's row plus the row of its position, and nothing past the last row.

    The same word at two positions becomes two different inputs. There is no row past the last one, so the model cannot
    read a longer text.

    Args:
        table: as in ``heatmap``; its first rows, its last row and its first 12 dimensions are drawn. None means a
            small sinusoidal table. Token rows are random, on the scale of the table.
        key, ax, title: as in ``heatmap``.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``; or ``table`` is an encoding, but not a plain learned
            table.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.idea(posembed.LearnedPositionalEmbedding(max_len=512, dim=64))
    """
    if isinstance(table, PositionEncoding) and (
        isinstance(table, ExtendedPositionalEmbedding)
        or not isinstance(table, LearnedPositionalEmbedding | LearnedGridEmbedding)
    ):
        raise ArgumentError(
            f"idea() draws a table that ends at its last row; {type(table).__name__} reads its rows in another way. "
            "Draw its rows with heatmap()"
        )
    rows = Rows(sinusoidal_table(len(WORDS), CELLS, base=10).double()) if table is None else rows_of(table, key)
    n, width = rows.values.shape
    shown: list[int | None] = list(range(n)) if n <= len(WORDS) else [*range(len(WORDS) - 1), None, n - 1]
    height = TOP + PITCH * (len(shown) + 1) + 40
    axes = panels_for(
        ax, title=title_of(title, "Each token gets the row of its position", rows.notes), height=height
    ).axes
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    cells = min(width, CELLS)
    tokens = token_rows(cells, scale=(rows.measured.std().item() if n * width > 1 else 0.0) or 1.0)
    largest = strongest(torch.cat([rows.values[:, :cells].flatten(), *tokens.values()])) * 1.2
    for x, text in ((TOKEN, "token rows"), (TABLE, "position table"), (SUM, "their sum")):
        write(axes, x + WIDE / 2, TOP - 12, text)
    write(axes, ID - 4, TOP - 12, "id")
    words = iter(WORDS)
    for line, position in enumerate(shown):
        y = TOP + PITCH * (line + 0.5)
        if position is None:
            for x in (TOKEN + WIDE / 2, ID, TABLE + WIDE / 2, SUM + WIDE / 2):
                write(axes, x, y, "⋮", color=MUTED)
            continue
        word = next(words)
        row = rows.values[position, :cells]
        write(axes, TOKEN - 8, y, word, ha="right")
        write_id(axes, y, position, INK)
        strip(axes, TOKEN, y, tokens[word], largest, THICK)
        strip(axes, TABLE, y, row, largest, PITCH)
        strip(axes, SUM, y, tokens[word] + row, largest, THICK)
        write(axes, (TOKEN + WIDE + ID) / 2 - 6, y, "+")
        write(axes, (TABLE + WIDE + SUM) / 2, y, "=")
    bottom = TOP + PITCH * len(shown)
    axes.add_patch(Rectangle((TABLE, TOP), WIDE, bottom - TOP, fill=False, edgecolor=INK, linewidth=1))
    draw_wall(axes, bottom, n, tokens[PAST], largest)
    write(axes, 2, height - 12, caption(rows), color=MUTED, ha="left", fontsize=TEXT - 1)
    return axes


def token_rows(cells: int, scale: float) -> dict[str, Tensor]:
    """Returns random rows by word, (cells,), the same at every call."""
    generator = torch.Generator().manual_seed(3)
    words = dict.fromkeys((*WORDS, PAST))
    return {word: scale * torch.randn(cells, generator=generator, dtype=torch.float64) for word in words}


def draw_wall(axes: Axes, bottom: float, n: int, token: Tensor, largest: float) -> None:
    """Draws the token past the last row: it has an id, and no row."""
    y = bottom + PITCH * 0.5 + 6
    axes.plot((TABLE - 8, TABLE + WIDE + 8), (bottom, bottom), color=WALL, linewidth=4, solid_capstyle="butt")
    write(axes, TOKEN - 8, y, PAST, ha="right")
    strip(axes, TOKEN, y, token, largest, THICK)
    write(axes, (TOKEN + WIDE + ID) / 2 - 6, y, "+")
    write_id(axes, y, n, WALL)
    box = Rectangle((TABLE, y - THICK / 2), WIDE, THICK, fill=False, edgecolor=WALL, linestyle="--", linewidth=1)
    axes.add_patch(box)
    write(axes, TABLE + WIDE / 2, y, f"no row for {n:,}", color=WALL, fontsize=TEXT - 2)
    write(axes, SUM + WIDE / 2, y, "PositionError", color=WALL)


def caption(rows: Rows) -> str:
    """Returns which positions the table holds, in which rows, and how many dimensions are drawn."""
    n, width = rows.values.shape
    sentences = [f"{n:,} rows: positions 0 to {n - 1:,}" if n > 1 else "1 row: position 0" if n else "No row"]
    if rows.first and n:
        sentences[0] += f", in rows {rows.first:,} to {rows.last:,} of the table"
    if width > CELLS:
        sentences.append(f"{CELLS} of {width:,} dimensions are drawn")
    return ". ".join(sentences) + "."


def strip(axes: Axes, x: float, y: float, values: Tensor, largest: float, thick: float) -> None:
    """Draws values (D,) as cells from left to right."""
    if not len(values):
        return
    colours = colormaps["RdBu_r"].with_extremes(bad=RULE)(((values / largest + 1) / 2).numpy())
    wide = WIDE / len(values)
    for index, colour in enumerate(colours):
        edge: dict[str, Any] = {"facecolor": colour, "edgecolor": RULE, "linewidth": 0.4}
        axes.add_patch(Rectangle((x + index * wide, y - thick / 2), wide, thick, **edge))


def write_id(axes: Axes, y: float, position: int, colour: str) -> None:
    write(axes, ID - 4, y, f"{position:,}", color=colour, weight="bold")
    axes.add_patch(
        FancyArrowPatch((ID + 8, y), (TABLE - 1, y), arrowstyle="-|>", mutation_scale=8, color=colour, linewidth=1)
    )


def write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    usual: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "fontsize": TEXT - 1, "parse_math": False}
    axes.text(x, y, text, **usual | how)
