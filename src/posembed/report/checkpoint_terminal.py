"""A table in a terminal: a small heat map of the cosine of each pair of rows, and a curve of the cosine by distance."""

from __future__ import annotations

import torch.nn.functional as F
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text
from torch import Tensor

from posembed.checkpoints.inspect import TableReport
from posembed.checkpoints.position_tables import PositionTable
from posembed.tables.similarity import cosine_by_distance, cosine_matrix
from posembed.words import signed

MOST_ROWS = 2048
"""The largest number of rows to compare. Of a longer table, every k-th row is compared."""
SIDE = 48
"""The largest number of cells on a side of the heat map. A character shows two cells, one above the other."""
INDENT = "  "
HALF, BARS = "▀", "▁▂▃▄▅▆▇█"
NEGATIVE, ZERO, POSITIVE = (33, 102, 172), (247, 247, 247), (178, 24, 43)
"""The colours of a cosine of -1, 0 and 1, as in the figures of pages (ColorBrewer's RdBu)."""


def drawn(report: TableReport, console: Console) -> list[Text]:
    """Returns lines of text that draw a learned table of 1-D positions, no wider than the console; no lines for other
    tables, or if the console's encoding lacks the characters. Without colours, only the curve is drawn."""
    table = report.table
    if not isinstance(table, PositionTable) or report.learned is None or table.layout.axes:
        return []
    cells = table.layout.split(report.values)[1].float()
    step = -(-len(cells) // MOST_ROWS)
    rows, side = cells[::step], min(SIDE, console.width - len(INDENT))
    if side < 2 or console.options.ascii_only or not rows.isfinite().all():
        return []
    by_distance = cosine_by_distance(rows)[1:]
    lines = []
    if console.color_system is not None and not console.no_color:
        lines = [Text(f"{INDENT}cosine of each pair of {len(rows)} rows (blue: -1, red: 1)"), *heat_map(rows, side)]
    curve = F.adaptive_avg_pool1d(by_distance[None].float(), min(side, len(by_distance)))[0]
    ends = (signed(float(by_distance[0]), 2), signed(float(by_distance[-1]), 2))
    said = f"cosine by distance, from {step} ({ends[0]}) to {step * len(by_distance)} ({ends[1]})"
    return [*lines, Text(INDENT + said), Text(INDENT + bars(curve))]


def heat_map(rows: Tensor, side: int = SIDE) -> list[Text]:
    side = min(side, len(rows)) // 2 * 2
    cells = F.adaptive_avg_pool2d(cosine_matrix(rows)[None].float(), side)[0].tolist()
    lines = []
    for upper, lower in zip(cells[::2], cells[1::2], strict=True):
        line = Text(INDENT)
        for above, below in zip(upper, lower, strict=True):
            line.append(HALF, Style(color=colour(above), bgcolor=colour(below)))
        lines.append(line)
    return lines


def colour(cosine: float) -> Color:
    end = POSITIVE if cosine > 0 else NEGATIVE
    share = min(abs(cosine), 1.0)
    return Color.from_rgb(*(zero + share * (most - zero) for zero, most in zip(ZERO, end, strict=True)))


def bars(values: Tensor) -> str:
    """Returns a bar for each value: one character, whose height is scaled from the smallest value to the largest."""
    low, high = float(values.min()), float(values.max())
    levels = ((values - low) / max(high - low, 1e-9) * (len(BARS) - 1)).round().long().tolist()
    return "".join(BARS[level] for level in levels)
