"""Accuracies and other scores and their differences, in words and in a figure, for the questions about texts and
images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from posembed.plots.charts import draw_interval, rows_sheet, write_right
from posembed.plots.style import MARKERS, MUTED, PAPER, Style, styles
from posembed.report.page import Cell, Column, Picture, picture
from posembed.report.questions import OUTCOMES, estimate_cell
from posembed.report.words import MINUS, by_outcome, called, interval, listed, percent, signed
from posembed.statistics import INTERVAL, Estimate

if TYPE_CHECKING:
    from posembed.lab.by_seed import Difference

SIGNIFICANT = "A difference is significant if both intervals exclude 0."
LOOKS = {"better": "good", "worse": "bad"}


def points(share: float) -> str:
    """Formats a difference between shares in percentage points, with its sign: +0.2. Student's t can exceed what a
    difference can be, so the ends of intervals are limited to −100 and +100."""
    return signed(100 * min(max(share, -1.0), 1.0), 1)


def accuracies(documents: str, found: Sequence[tuple[str, Estimate]], score: str = "accuracy") -> str:
    """Returns a sentence on the scores, best first, that starts in lower case; empty if none are known."""
    best_first = sorted(found, key=lambda pair: -pair[1].value)
    shares = listed([f"{percent(share.value)}% with {called(name)}" for name, share in best_first])
    return f"the {score} on {documents} is {shares}." if shares else ""


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


def smallest_significant(differences: Iterable[Difference | None]) -> float | None:
    """Returns half the width of the wider interval, as the median over encodings. Smaller differences would usually not
    be significant. Returns None without several runs per encoding.
    """
    halves = sorted(width(wider(each)) / 2 for each in differences if each and each.over_seeds.low is not None)
    return halves[len(halves) // 2] if halves else None


def difference_sentences(differences: Mapping[str, Difference], reference: str) -> list[str]:
    """Returns sentences on the differences, and on the smallest that would be significant."""
    sentences = compared(differences, reference, "documents")
    sentences += [SIGNIFICANT] if sentences else []
    smallest = smallest_significant(differences.values())
    if smallest is not None and percent(smallest) != "0.0":
        sentences.append(f"Differences below about {percent(smallest)} points would not be significant here.")
    return sentences


def difference_columns(reference: str | None, read: Callable[[Any], Difference | None]) -> list[Column]:
    """Returns the columns of a difference: over seeds, over documents, and whether it is significant. ``read`` returns
    a row's difference."""

    def over_seeds(row: Any) -> Cell:
        difference = read(row)
        return estimate_cell(difference.over_seeds if difference else None, points, missing="")

    def over_documents(row: Any) -> Cell:
        difference = read(row)
        return Cell(interval(difference.over_documents if difference else None, points), kind="muted")

    def significant(row: Any) -> Cell | str:
        difference = read(row)
        return OUTCOMES[outcome(difference)] if difference else ""

    return [
        (Cell(f"minus {reference}", note="over seeds", rank=2), over_seeds),
        (Cell(INTERVAL, note="over documents", rank=4), over_documents),
        (Cell("significant?", kind="words", rank=3), significant),
    ]


def difference_picture(
    differences: Mapping[str, Difference],
    names: Sequence[str],
    reference: str | None,
    described: str,
    score: str = "accuracy",
) -> Picture:
    """Returns the figure of the differences with its caption. names: all encodings of the page."""
    return picture(
        difference_figure(differences, styles(names), reference or "", score),
        name="differences",
        described=described,
        caption=f"The line at 0 is the reference, {reference}. Thin bars are {INTERVAL}s over the "
        f"held-out documents. With several runs per encoding, thick bars are {INTERVAL}s of differences paired "
        "by seed. A difference is significant if both intervals are known and neither crosses the line.",
    )


def difference_figure(
    differences: Mapping[str, Difference], drawn: Mapping[str, Style], reference: str, score: str = "accuracy"
) -> Figure:
    """Draws one line per encoding, best first. Thick bars are intervals over seeds, thin bars over documents."""
    best_first = sorted(differences, key=lambda name: -differences[name].over_seeds.value)
    title = f"{score} minus that of {reference}, in percentage points"
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
