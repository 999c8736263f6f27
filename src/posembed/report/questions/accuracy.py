"""Accuracies and their differences in words and in a figure, for every question that classifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from posembed.report.dots import draw_interval, rows_sheet, write_beside
from posembed.report.drawing import MARKERS, MUTED, PAPER, Style
from posembed.report.page import Cell
from posembed.report.words import MINUS, called, interval, listed, share_interval, signed
from posembed.statistics import INTERVAL, Estimate

if TYPE_CHECKING:
    from posembed.lab.by_seed import Difference


def percent(share: float) -> str:
    """Formats a share for a column of percentages: 97.4."""
    return f"{100 * share:.1f}"


def points(share: float) -> str:
    """Formats a difference of shares in percentage points, with its sign: +0.2."""
    return signed(100 * share, 1)


def accuracy(estimate: Estimate) -> str:
    """Returns "97.4%", with its interval if it is known."""
    known = share_interval(estimate)
    return f"{percent(estimate.value)}%" + (f" ({known})" if known else "")


def difference_cell(difference: Difference) -> Cell:
    """Returns a difference with the wider of its intervals, green or red if it is significant."""
    value = difference.over_seeds.value
    kind = ("good" if value > 0 else "bad") if difference.significant else ""
    return Cell(points(value), note=interval(wider(difference), points), kind=kind)


def compared(name: str, difference: Difference, reference: str, documents: str) -> str:
    """Returns a sentence on whether an encoding is better than the reference. ``documents``: what was held out."""
    value, against = difference.over_seeds.value, called(reference)
    over_documents = f"{interval(difference.over_documents, points) or 'unknown'} over {documents}"
    if difference.over_seeds.low is None:
        return (
            f"{called(name)} compared with {against}: {points(value)} points in one run per encoding ({INTERVAL} "
            f"{over_documents}; unknown over seeds)."
        )
    intervals = f"({INTERVAL}s {interval(difference.over_seeds, points)} over seeds, {over_documents})"
    if not difference.significant:
        return f"{called(name)} and {against} do not differ significantly: {points(value)} points {intervals}."
    return f"{called(name)} is {'better' if value > 0 else 'worse'} than {against}: {points(value)} points {intervals}."


def in_short(differences: Mapping[str, Difference], reference: str) -> list[str]:
    """Returns the same for several encodings, with the wider of each one's intervals, grouped by outcome."""
    if any(difference.over_seeds.low is None for difference in differences.values()):
        every = listed([_one_in_short(name, difference) for name, difference in differences.items()])
        return [f"Others compared with {called(reference)}: {every}."]
    groups: dict[str, list[str]] = {
        f"Better than {called(reference)}": [],
        f"Worse than {called(reference)}": [],
        f"Not significantly different from {called(reference)}": [],
    }
    better, worse, neither = groups.values()
    for name, difference in differences.items():
        group = neither if not difference.significant else better if difference.over_seeds.value > 0 else worse
        group.append(_one_in_short(name, difference))
    return [f"{verdict}: {listed(group)}." for verdict, group in groups.items() if group]


def _one_in_short(name: str, difference: Difference) -> str:
    known = interval(wider(difference), points)
    return f"{called(name)} {points(difference.over_seeds.value)}" + (f" ({known})" if known else "")


def wider(difference: Difference) -> Estimate:
    """Returns the wider of the two intervals."""

    def width(estimate: Estimate) -> float:
        return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low

    return max(difference.over_seeds, difference.over_documents, key=width)


def difference_figure(differences: Mapping[str, Difference], drawn: Mapping[str, Style], reference: str) -> Figure:
    """Draws one line per encoding, best first. Thick: the interval over seeds; thin: over held-out documents."""
    best_first = sorted(differences, key=lambda name: -differences[name].over_seeds.value)
    title = f"accuracy minus that of {reference}, in percentage points"
    figure, axes = rows_sheet(best_first, title=title, below="worse ← → better", each=34, right=56)
    axes.axvline(0, color=MUTED, linewidth=1)
    for place, name in enumerate(best_first):
        colour, difference = drawn[name].colour, differences[name]
        for estimate, width, end in ((difference.over_documents, 1.2, "|"), (difference.over_seeds, 4.0, "")):
            how = {"linewidth": width, "marker": end, "markersize": 12, "solid_capstyle": "butt"}
            draw_interval(axes, estimate, place, factor=100, color=colour, **how)
        mean, marker = difference.over_seeds.value, MARKERS[drawn[name].index]
        axes.plot(100 * mean, place, color=colour, marker=marker, markersize=7, markeredgecolor=PAPER)
        write_beside(axes, place, points(mean), colour)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.5), max(high, 0.5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", MINUS) if value else "0"))
    return figure
