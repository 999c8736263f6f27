"""The page of ``compare cost``: the answer, the overheads, the numbers, the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.cost.results import CostResult, CostRow, load
from posembed.report.charts import Line, draw_interval, line_chart, rows_sheet
from posembed.report.drawing import MUTED, PAPER, RULE, SERIES, TEXT, fix_ticks, key_above, styles
from posembed.report.evidence import evidence_section
from posembed.report.page import Section, Table, picture, render_page
from posembed.report.questions import no_reference
from posembed.report.questions.cost_tables import (
    cheapest_first,
    cost_tables,
    milliseconds,
    percent,
    quoted_share,
    sizes_in_words,
    yours,
)
from posembed.report.words import called, from_to, listed
from posembed.statistics import INTERVAL, Estimate

FEW = 4
"""The answer lists up to this many encodings with their numbers, and only the ends of more; the tables list all."""
LINEAR_TO = 1.0
"""Percent. The axis is linear up to here and logarithmic beyond, so that both .1% and 100% are readable."""
HOW_TO_READ = (
    "Relative to the time of an attention layer without position, forward and backward. Alone: the encoding's own "
    "work. Overhead: the layer with it compared with the layer without; left of 0 it saves work. Bars are "
    f"{INTERVAL}s of the median."
)


class CostPage:
    """The page of a measurement of cost. It has the public methods of ``QuestionPage``."""

    def answer(self, result: CostResult) -> list[str]:
        """Returns what encodings cost: time alone and inside the layer, parameters, growth."""
        texts = [_time(result), _inside(result), _parameters(result), _growth(result)]
        return [text for text in texts if text]

    def main_tables(self, result: CostResult) -> list[Table]:
        return cost_tables(result)

    def notes(self, result: CostResult) -> list[str]:
        return [f"{self.about(result)} torch {result.environment['torch']}; {result.seconds:.0f} s."]

    def about(self, result: CostResult) -> str:
        """Returns how the result was measured, in two sentences."""
        environment, rounds = result.environment, result.attention
        machine = environment["device"]
        if result.settings.device == "cpu":
            machine = f"{environment['processor']} (threads: {environment['threads']})"
        return (
            f"Measured on {machine}, at {sizes_in_words(result)}: every encoding alone and in an attention layer, "
            f"taking turns. Medians of {len(rounds.forward.values)} rounds forward and {len(rounds.backward.values)} "
            f"with backward, with their {INTERVAL}s."
        )

    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        if reference is not None:
            raise no_reference(folder, question)
        return self.render(load(folder))

    def render(self, result: CostResult) -> str:
        """Returns the page as text. The same result gives the same page."""
        rows = _with_position(result)
        shares = [f"{row.encoding} {percent(row.alone_share.backward.value)}" for row in cheapest_first(result)]
        overheads = picture(
            overhead_figure(result),
            name="overhead",
            described=f"Relative to the time of an attention layer, each encoding alone takes: {', '.join(shares)}.",
            caption=HOW_TO_READ,
        )
        sections = [Section("", (overheads,)), Section("The numbers", tuple(cost_tables(result)))]
        if rows:
            growth = picture(
                growth_figure(result, rows),
                name="growth",
                described="Time by length, one line per encoding.",
                caption="A cross marks the last length that was tried, where the next would not fit.",
            )
            sections.append(Section("Growth with length", (growth,)))
        sections.append(evidence_section(vars(result.settings), dict(sorted(result.environment.items())), ()))
        return render_page(
            title="What does each position encoding cost?",
            about=self.about(result),
            answer=self.answer(result),
            sections=sections,
            styles=styles([row.encoding for row in result.rows]),
        )


def _with_position(result: CostResult) -> list[CostRow]:
    """Returns the encodings that do something, cheapest first; “none” shows the cost of measuring."""
    return [row for row in cheapest_first(result) if row.writes.all]


def _with_numbers(rows: Sequence[CostRow], write: Callable[[CostRow], str]) -> str:
    """Returns "1.5% with alibi and 2.6% with rope"; of more than FEW encodings, the first to the last."""
    texts = [f"{write(row)} with {called(row.encoding)}" for row in rows]
    return listed(texts) if len(texts) <= FEW else f"from {from_to(texts)}"


def _time(result: CostResult) -> str:
    rows, layer = _with_position(result), milliseconds(result.attention.backward.value)
    if not rows:
        return ""
    shares = _with_numbers(rows, lambda row: percent(row.alone_share.backward.value))
    return (
        f"In training, relative to an attention layer of {layer} ms ({sizes_in_words(result)}), the encoding alone "
        f"takes {shares}."
    )


def _inside(result: CostResult) -> str:
    """Says which encodings add time to the layer and which save it, and which overheads are not significant."""
    leads = {
        "above": "the encoding adds",
        "below": "the encoding changes the time by",
        "both": "the overhead is not significant:",
    }
    rows = sorted(_with_position(result), key=lambda row: row.overhead.backward.value)
    parts = []
    for side, lead in leads.items():
        group = [row for row in rows if row.overhead.backward.side_of(0) == side]
        if group:
            parts.append(f"{lead} {_with_numbers(group, lambda row: percent(row.overhead.backward.value))}")
    why = "A bias (H, L, L) costs time because it replaces the causal mask; a window saves time."
    return f"In the layer, {'; '.join(parts)}. {why}" if parts else ""


def _parameters(result: CostResult) -> str:
    size = yours(result)
    others = [row for row in _with_position(result) if row.parameters != size.table]
    others.sort(key=lambda row: row.parameters)
    text = (
        f"A learned table of {size.rows:,} x {size.width:,} has {size.table:,} parameters: "
        f"{percent(size.share_of_embeddings)} of the embeddings with {size.vocabulary:,} tokens, "
        f"{percent(size.share_of_model)} of a {size.layers:,}-layer model."
    )
    return (
        f"{text} The number of parameters of the others is {_with_numbers(others, lambda row: f'{row.parameters:,}')}."
        if others
        else text
    )


def _growth(result: CostResult) -> str:
    rows = [row for row in _with_position(result) if row.growth.time_exponent is not None]
    rows.sort(key=lambda row: row.growth.time_exponent or 0.0)
    powers = _with_numbers(rows, lambda row: f"{row.growth.time_exponent or 0.0:.1f}")
    stopped = sorted((row for row in rows if row.growth.stopped), key=lambda row: max(row.growth.lengths))
    ends = _with_numbers(stopped, lambda row: f"{max(row.growth.lengths):,}")
    sentences = [
        f"The time of the encoding grows as length to the power {powers}." if rows else "",
        f"For memory or time, nothing was tried past this many tokens: {ends}." if stopped else "",
    ]
    return " ".join(sentences).strip()


def overhead_figure(result: CostResult) -> Figure:
    """Draws each encoding's time alone and its overhead in the layer, relative to attention, with backward."""
    rows = cheapest_first(result)
    title, below = "forward and backward (logarithmic from 1% on)", "% of the time of an attention layer"
    figure, axes = rows_sheet([row.encoding for row in rows], title=title, below=below, each=24, top=62)
    _percent_axis(axes, rows)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    series: tuple[tuple[str, Callable[[CostRow], Estimate], float, str, str], ...] = (
        ("alone", lambda row: row.alone_share.backward, -0.14, "o", SERIES[0]),
        ("overhead in the layer", lambda row: row.overhead.backward, 0.14, "s", SERIES[1]),
    )
    heights = range(len(rows))
    for label, read, lower, marker, colour in series:
        for height in heights:
            axes.axhline(height, color=RULE, linewidth=0.5, zorder=0)
            found = read(rows[height])
            draw_interval(axes, found, height + lower, factor=100, color=colour, linewidth=2.2, alpha=0.5)
        how: dict[str, Any] = {"marker": marker, "markersize": 6, "markeredgecolor": PAPER, "linestyle": "none"}
        means = [100 * read(row).value for row in rows]
        axes.plot(means, [height + lower for height in heights], color=colour, zorder=3, label=label, **how)
    quoted = [(100 * (quoted_share(row.encoding) or math.nan), height) for height, row in enumerate(rows)]
    how = {"marker": "|", "markersize": 14, "markeredgewidth": 1.6, "linestyle": "none"}
    axes.plot(*zip(*quoted, strict=True), color=MUTED, zorder=2, label="published", **how)
    key_above(axes, fontsize=TEXT)
    return figure


def growth_figure(result: CostResult, rows: Sequence[CostRow]) -> Figure:
    """Draws milliseconds by length, both logarithmic: one line per encoding, a cross where it was stopped."""
    lines = []
    for row in rows:
        times = [Estimate(1000 * seconds) for seconds in row.growth.seconds]
        points = dict(zip(row.growth.lengths, times, strict=True))
        lines.append(Line(row.encoding, points, max(points) if row.growth.stopped else None))
    every = [time.value for line in lines for time in line.points.values()]
    lengths = max((row.growth.lengths for row in rows), key=len)
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
    found = [value for row in rows for value in (row.alone_share.backward, row.overhead.backward)]
    ends = [100 * end for value in found for end in (value.value, value.low, value.high) if end is not None]
    low, high = min(0.0, *ends), max(*ends, LINEAR_TO)
    axes.set_xscale("symlog", linthresh=LINEAR_TO, linscale=0.6)
    axes.set_xlim(low * 1.6 if low < -0.2 else -0.3, high * 1.6)
    ticks = [sign * tick for sign in (-1, 1) for tick in (1.0, 10.0, 100.0, 1000.0, 10_000.0)]
    fix_ticks(axes.xaxis, sorted([0.0, *(tick for tick in ticks if low * 1.6 <= tick <= high * 1.6)]))
    axes.grid(axis="x", color=RULE, linewidth=0.5)


PAGE = CostPage()
