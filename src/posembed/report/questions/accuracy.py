"""Accuracies and their differences, in words and in a figure, for the questions about classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from posembed.plots.charts import draw_interval, rows_sheet, write_right
from posembed.plots.style import MARKERS, MUTED, PAPER, Style
from posembed.report.page import Cell
from posembed.report.words import MINUS, by_outcome, called, interval, listed, percent, signed
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.by_seed import Difference

SIGNIFICANT = "A difference is significant if both intervals exclude 0."
LOOKS = {"better": "good", "worse": "bad"}


def points(share: float) -> str:
    """Formats a difference between shares in percentage points, with its sign: +0.2."""
    return signed(100 * share, 1)


def accuracies(documents: str, found: Sequence[tuple[str, Estimate]]) -> str:
    """Returns a sentence on the accuracies, best first, that starts in lower case; empty if none are known."""
    best_first = sorted(found, key=lambda pair: -pair[1].value)
    shares = listed([f"{percent(share.value)}% with {called(name)}" for name, share in best_first])
    return f"the accuracy on {documents} is {shares}." if shares else ""


def outcome(difference: Difference) -> str:
    """Returns "better", "worse" or "not significant", or "unknown" if an interval is unknown."""
    if None in (difference.over_seeds.low, difference.over_documents.low):
        return "unknown"
    if not difference.significant:
        return "not significant"
    return "better" if difference.over_seeds.value > 0 else "worse"


def compared(differences: Mapping[str, Difference], reference: str, documents: str) -> list[str]:
    """Returns one sentence per outcome, with the intervals over seeds and over held-out items.

    ``documents``: the name of the held-out items.
    """

    def text(name: str, difference: Difference) -> str:
        over_seeds, over_documents = (
            interval(estimate, points) or "unknown" for estimate in (difference.over_seeds, difference.over_documents)
        )
        by = points(difference.over_seeds.value)
        return f"{called(name)} ({by} points; {over_seeds} over seeds, {over_documents} over {documents})"

    return by_outcome(called(reference), [(outcome(each), text(name, each)) for name, each in differences.items()])


def difference_cell(difference: Difference) -> Cell:
    """Returns a cell with a difference and the wider of its intervals."""
    note = interval(wider(difference), points)
    return Cell(points(difference.over_seeds.value), note=note, kind=LOOKS.get(outcome(difference), ""))


def width(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low


def wider(difference: Difference) -> Estimate:
    return max(difference.over_seeds, difference.over_documents, key=width)


def difference_figure(differences: Mapping[str, Difference], drawn: Mapping[str, Style], reference: str) -> Figure:
    """Draws one line per encoding, best first. Thick bars are intervals over seeds, thin bars over documents."""
    best_first = sorted(differences, key=lambda name: -differences[name].over_seeds.value)
    title = f"accuracy minus that of {reference}, in percentage points"
    figure, axes = rows_sheet(best_first, title=title, below="worse ← → better", each=34, right=56)
    axes.axvline(0, color=MUTED, linewidth=1)
    for row, name in enumerate(best_first):
        colour, difference = drawn[name].colour, differences[name]
        for estimate, width, end in ((difference.over_documents, 1.2, "|"), (difference.over_seeds, 4.0, "")):
            how: dict[str, Any] = {"linewidth": width, "marker": end, "markersize": 12, "solid_capstyle": "butt"}
            draw_interval(axes, estimate, row, factor=100, color=colour, **how)
        mean, marker = difference.over_seeds.value, MARKERS[drawn[name].index]
        axes.plot(100 * mean, row, color=colour, marker=marker, markersize=7, markeredgecolor=PAPER)
        write_right(axes, row, points(mean), colour)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.5), max(high, 0.5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", MINUS) if value else "0"))
    return figure
