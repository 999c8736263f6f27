"""The HTML page of one measurement of cost: the answer, the overheads, the numbers, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.cost.results import CostResult, CostRow, load
from posembed.report.dots import draw_interval, rows_sheet
from posembed.report.drawing import LETTER, MUTED, PAPER, RULE, SERIES, TEXT, WIDTH, axes_at, fix_ticks, styles
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Folded, Pairs, Section, Table, picture, render_page
from posembed.report.questions import FolderPage, no_reference
from posembed.report.questions.cost_tables import cost_tables
from posembed.report.questions.cost_words import answer, cheapest_first, machine, percent, quoted_share, sizes_in_words
from posembed.statistics import INTERVAL, Estimate

ALONE, ADDED = SERIES[0], SERIES[1]
LINEAR_TO = 1.0
"""Percent. The axis is linear up to here and logarithmic beyond, so that both .1% and 100% are readable."""
HOW_TO_READ = (
    "Relative to the time of an attention layer without position, forward and backward. Alone: the encoding's own "
    "work. Overhead: the layer with it compared with the layer without; left of 0 it saves work. Bars are "
    f"{INTERVAL}s of the median."
)


class CostPage(FolderPage[CostResult]):
    def answer(self, summary: CostResult) -> list[str]:
        return answer(summary)

    def main_tables(self, summary: CostResult) -> list[Table]:
        return cost_tables(summary)

    def notes(self, summary: CostResult) -> list[str]:
        return [f"{about(summary)} torch {summary.environment['torch']}; {summary.seconds:.0f} s."]

    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        if reference is not None:
            raise no_reference(folder, question)
        return render(load(folder))


def render(result: CostResult) -> str:
    """Returns the page as text. The same result gives the same page."""
    return render_page(
        title="What does each position encoding cost?",
        about=about(result),
        answer=answer(result),
        sections=sections(result),
        styles=styles([row.encoding for row in result.rows]),
    )


def about(result: CostResult) -> str:
    """Returns how the result was measured, in two sentences."""
    rounds = result.attention
    return (
        f"Measured on {machine(result)}, at {sizes_in_words(result)}: every encoding alone and in an attention layer, "
        f"taking turns. Medians of {len(rounds.forward.values)} rounds forward and {len(rounds.backward.values)} with "
        f"backward, with their {INTERVAL}s."
    )


def sections(result: CostResult) -> list[Section]:
    """Returns the figures, the tables and the evidence."""
    shares = [f"{row.encoding} {percent(row.alone_share.backward.value)}" for row in cheapest_first(result)]
    overheads = picture(
        overhead_figure(result),
        name="overhead",
        described=f"Relative to the time of an attention layer, each encoding alone takes: {', '.join(shares)}.",
        caption=HOW_TO_READ,
    )
    found = [Section("", (overheads,)), Section("The numbers", tuple(cost_tables(result)))]
    if any(row.writes.all for row in result.rows):
        growth = picture(
            growth_figure(result),
            name="growth",
            described="Time by length, one line per encoding.",
            caption="A cross marks the last length that was tried, where the next would not fit.",
        )
        found.append(Section("Growth with length", (growth,)))
    settings = tuple((name, _plain(value)) for name, value in vars(result.settings).items())
    evidence = (
        Folded("Settings", (Pairs(settings),)),
        Folded("Machine and versions", (Pairs(tuple(sorted(result.environment.items()))),)),
    )
    return [*found, Section("Evidence", evidence)]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def overhead_figure(result: CostResult) -> Figure:
    """Draws each encoding's time alone and its overhead in the layer, relative to attention, with backward."""
    rows = cheapest_first(result)
    figure, axes = rows_sheet(
        [row.encoding for row in rows],
        title="forward and backward (logarithmic from 1% on)",
        below="% of the time of an attention layer",
        each=24,
        top=62,
    )
    _percent_axis(axes, rows)
    for place, row in enumerate(rows):
        axes.axhline(place, color=RULE, linewidth=0.5, zorder=0)
        for value, above, colour, marker in (
            (row.alone_share.backward, 0.14, ALONE, "o"),
            (row.overhead.backward, -0.14, ADDED, "s"),
        ):
            draw_interval(axes, value, place - above, factor=100, color=colour, linewidth=2.2, alpha=0.5)
            how: dict[str, Any] = {"marker": marker, "markersize": 6, "markeredgecolor": PAPER, "zorder": 3}
            axes.plot(100 * value.value, place - above, color=colour, **how)
        quoted = quoted_share(row.encoding)
        if quoted is not None:
            axes.plot(100 * quoted, place, marker="|", markersize=14, markeredgewidth=1.6, color=MUTED, zorder=2)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    _key(figure, [("o", "alone", ALONE), ("s", "overhead in the layer", ADDED), ("|", "published", MUTED)])
    return figure


def growth_figure(result: CostResult) -> Figure:
    """Milliseconds by length, both logarithmic: one line per encoding, a cross where it was stopped."""
    rows = [row for row in cheapest_first(result) if row.writes.all]
    times = {row.encoding: [1000 * seconds for seconds in row.growth.seconds] for row in rows}
    every = [time for found in times.values() for time in found]
    lengths = max((row.growth.lengths for row in rows), key=len)
    lines = []
    for row in rows:
        points = dict(zip(row.growth.lengths, map(Estimate, times[row.encoding]), strict=True))
        lines.append(Line(row.encoding, points, max(row.growth.lengths) if row.growth.stopped else None))
    return line_chart(
        lines,
        names=[row.encoding for row in result.rows],
        title="milliseconds, alone, forward (log scale)",
        below="tokens (log scale)",
        ticks=lengths[:: -2 if len(lengths) > 4 else -1],
        logarithmic=(min(every) / 1.5, max(every) * 1.5),
        past_end="not tried past",
    )


def _percent_axis(axes: Axes, rows: Sequence[CostRow]) -> None:
    values = [0.0]
    for row in rows:
        for value in (row.alone_share.backward, row.overhead.backward):
            values += [100 * end for end in (value.value, value.low, value.high) if end is not None]
    low, high = min(values), max(*values, LINEAR_TO)
    axes.set_xscale("symlog", linthresh=LINEAR_TO, linscale=0.6)
    axes.set_xlim(low * 1.6 if low < -0.2 else -0.3, high * 1.6)
    ticks = [sign * tick for sign in (-1, 1) for tick in (1.0, 10.0, 100.0, 1000.0, 10_000.0)]
    fix_ticks(axes.xaxis, sorted([0.0, *(tick for tick in ticks if low * 1.6 <= tick <= high * 1.6)]))
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def _key(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    axes = axes_at(figure, left=0, top=24, width=WIDTH, height=24)
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, 1)
    place = 6.0
    for marker, name, colour in entries:
        axes.plot(place, 0.5, marker=marker, markersize=7, color=colour, markeredgewidth=1.6 if marker == "|" else 0)
        axes.text(place + 9, 0.5, name, fontsize=TEXT, color=colour, verticalalignment="center_baseline")
        place += len(name) * LETTER + 34


PAGE = CostPage()
