"""Perplexity by context length, with the end of each encoding that has a last position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from matplotlib.axes import Axes

from posembed.arguments import checked
from posembed.errors import ArgumentError
from posembed.plots.canvas import axes_for, draws, room_for, title_of
from posembed.plots.charts import Line, draw_chart, end_names, ended_at
from posembed.plots.source import by_name, by_number
from posembed.plots.ticks import room_for_lines
from posembed.settings import Count
from posembed.statistics import Estimate

CUT = 4
"""The axis ends at this many times the lowest perplexity, so that the lines of good encodings stay separate."""


@draws
def lengths(comparison: Any, *, trained: int | None = None, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draws the perplexity of the same tokens by the length of their context: one line per encoding.

    Both axes are logarithmic. A flat line means that the encoding holds past the training length, and a rising line
    that it gets worse. Perplexities above about four times the lowest are cut off. If a line leaves the plot, its name
    shows its last value. A cross marks where a table ends; the line's name shows the last position.

    Args:
        comparison: what ``posembed.compare("lengths", ...)`` returns, or positive perplexities by name and length, such
            as ``{"learned": {64: 4.1, 128: None}}``. None means that the encoding has no positions at this length.
        trained: the training length, drawn as a dotted line. Not used for a comparison, which has its own.
        ax: the Axes to draw on. None means a new figure. The names are to the right of the Axes.
        title: as in ``heatmap``.

    Raises:
        ArgumentError: ``comparison``, ``trained`` or ``ax`` has the wrong type, or there is no perplexity.

    Examples:
        >>> import posembed
        >>> ax = posembed.plots.lengths({"rope": {64: 3.7, 128: 4.4}, "learned": {64: 4.1, 128: None}}, trained=64)
    """
    trained = checked("trained", trained, Count | None)
    summary = getattr(comparison, "summary", comparison)
    of_lengths = hasattr(summary, "headline") and summary.headline.kind == "log"
    axis = summary.axis if of_lengths else None
    if of_lengths and not any(row.seeds for row in summary.rows):
        raise ArgumentError("expected at least one run that succeeded; got a comparison whose runs all failed")
    if axis is not None:
        names, trained = list(summary.names), axis.trained
        lines = lines_by_x(summary, summary.headline, [row.name for row in summary.rows if row.seeds], trained)
        ticks = list(summary.xs(summary.headline))
    else:
        lines = lines_of(comparison, trained)
        names, ticks = [line.name for line in lines], sorted({x for line in lines for x in line.points})
    if not ticks:
        raise ArgumentError("expected at least one perplexity by length; got none")
    ends = heights(lines)
    axes = axes_for(
        ax,
        title=title_of(title, "perplexity of the same tokens (log scale; lower is better)"),
        height=max(252, room_for_lines(len(lines))),
        left=44,
        right=room_for(end_names(lines, ends).values()),
        x="tokens of context (log scale)",
        lift=0 if trained is None else 14,  # for the word above the line of the training length
    )
    draw_chart(axes, lines, names=names, ticks=ticks, trained=trained, logarithmic=ends)
    return axes


def lines_by_x(found: Any, metric: Any, names: Sequence[str], trained: int | None) -> list[Line]:
    """Returns the lines of the estimates of a metric by x. trained: the x of training, which always has a value."""
    values = {name: found.by_x(metric, name) for name in names}
    return [
        Line.of(name, of_name, ended_at(of_name, trained) if trained else found.end(name))
        for name, of_name in values.items()
    ]


def lines_of(perplexities: Any, trained: int | None) -> list[Line]:
    """Returns the lines of perplexities by name and length."""
    wanted = 'expected a comparison of lengths, or perplexities by name and length: {"rope": {64: 3.7, 128: 4.4}}; got '
    if not isinstance(perplexities, Mapping) or not all(isinstance(one, Mapping) for one in perplexities.values()):
        raise ArgumentError(f"{wanted}a {type(perplexities).__name__}")
    lines = []
    for name, by_length in by_name(perplexities).items():
        found: dict[int, Estimate | None] = {}
        for length, value in by_number(by_length, "lengths", Count).items():
            found[length] = estimate_of(value)
            if value is not None and found[length] is None:
                raise ArgumentError(f"{wanted}{value!r} for {name} at {length}")
        shortest = min(found, default=1)
        lines.append(Line.of(name, found, ended_at(found, trained or shortest)))
    return lines


def estimate_of(value: Any) -> Estimate | None:
    """Returns an estimate unchanged, a number above 0, infinity or NaN as an estimate, and None for anything else."""
    is_number = isinstance(value, Real) or (getattr(value, "ndim", None) == 0 and not getattr(value, "is_meta", False))
    found = Estimate(float(value)) if is_number and not isinstance(value, bool) else value
    return found if isinstance(found, Estimate) and not found.value <= 0 else None


def heights(lines: Sequence[Line], cut: float = CUT) -> tuple[float, float]:
    """Returns the axis ends. The upper end is about the highest mean, limited to 1.3 to ``cut`` times the lowest."""
    means = [e.value for line in lines for e in line.points.values() if 0 < e.value < math.inf] or [1.0]
    lowest = min(means)
    highest = min(max(*means, 1.3 * lowest), cut * lowest)
    room = (highest / lowest) ** 0.08
    top = highest * room if highest < cut * lowest else float(f"{highest:.2g}")
    return lowest / room, top
