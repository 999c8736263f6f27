"""One HTML page about an evaluation: what was best at the longest length, the curve by length, the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from posembed.evaluation.results import Evaluation, Row, is_perplexity, told
from posembed.evaluation.runnable import KINDS
from posembed.report.drawing import MARKERS, MUTED, PAPER, SERIES, fix_ticks, lines_sheet, tick_heights
from posembed.report.evaluation.words import answer, difference, difference_span, figure, span
from posembed.report.labels import label_line_ends
from posembed.report.page import Cell, Lines, Section, Table, picture, render_page, write_page
from posembed.report.page import Row as TableRow

KINDS_OF = {"better": "good", "worse": "bad"}


def write_evaluation_page(evaluation: Evaluation, path: str | Path) -> Path:
    """Write an evaluation as one self-contained HTML file, whole or not at all.

    Raises:
        ArgumentError: it cannot be written there.
    """
    return write_page(Path(path), render(evaluation), option="--report")


def render(evaluation: Evaluation) -> str:
    measure, longest = evaluation.measures[0], evaluation.lengths[-1]
    checkpoints = [row for row in evaluation.rows if not row.baseline]
    sentences = " ".join(answer(evaluation))
    curve = picture(
        length_figure(evaluation, measure),
        name="lengths",
        described=sentences,
        caption=f"{measure.capitalize()} by tokens of text. Bars: 95% intervals over texts. Two rows whose bars "
        "overlap may still be told apart, since both were measured on the same texts.",
    )
    return render_page(
        title=f"How good {'is it' if len(checkpoints) == 1 else 'are they'} with {longest:,} tokens of text?",
        about=f"{', '.join(row.name for row in checkpoints)}: {KINDS[evaluation.kind]}"
        f"{'' if len(checkpoints) == 1 else ', in several versions'}, on {evaluation.texts:,} texts.",
        answer=[sentences],
        sections=[
            Section("", (curve,)),
            Section("The numbers", tuple(table(evaluation, name) for name in evaluation.measures)),
            Section("How it was measured", (Lines(evaluation.notes),)),
        ],
    )


def better(measure: str) -> str:
    return f"{'lower' if is_perplexity(measure) else 'higher'} is better"


def table(evaluation: Evaluation, measure: str) -> Table:
    """A measure by length, and the difference from the reference at the longest one."""
    longest, reference = evaluation.lengths[-1], evaluation.reference

    def cells(row: Row) -> tuple[Cell, ...]:
        values = []
        for length in evaluation.lengths:
            found = row.estimate(measure, length)
            if found is None:
                values.append(Cell("-" if row.fits(length) else "too long", kind="muted"))
            else:
                values.append(Cell(figure(measure, found.mean), note=span(measure, found)))
        versus = None if row is reference else row.versus(reference, measure, longest)
        if versus is None:
            return (*values, Cell(""))
        kind = KINDS_OF.get(told(measure, versus), "muted")
        return (*values, Cell(difference(measure, versus.mean), note=difference_span(measure, versus), kind=kind))

    against = "ratio to" if is_perplexity(measure) else "difference from"
    return Table(
        measure.capitalize(),
        f"{better(measure).capitalize()}. Below each figure: its 95% interval over texts. Last column: {against} "
        f"{reference.name} at {longest:,} tokens, text by text; in colour where its interval tells the two apart.",
        (*(Cell(f"{length:,}") for length in evaluation.lengths), Cell("against", note=reference.name)),
        tuple(TableRow(row.name, cells(row)) for row in evaluation.rows),
        first="checkpoint",
    )


@dataclass(frozen=True)
class Look:
    colour: str
    line: str
    marker: str


def looks(evaluation: Evaluation) -> list[Look]:
    """Checkpoints in colours, and dashes when those run out; baselines grey and dotted."""
    found, number = [], 0
    for row in evaluation.rows:
        if row.baseline:
            found.append(Look(MUTED, ":", "."))
        else:
            turn = number % len(SERIES)
            found.append(Look(SERIES[turn], "-" if number < len(SERIES) else "--", MARKERS[turn]))
            number += 1
    return found


def length_figure(evaluation: Evaluation, measure: str) -> Figure:
    """A measure by length, a line a row, with bars for the intervals over texts."""
    lengths = evaluation.lengths
    ends = []
    for row, look in zip(evaluation.rows, looks(evaluation), strict=True):
        last = row.estimate(measure, lengths[-1])
        if last is not None:
            ends.append((last.mean, row.name, look.colour))
    scale = " (log scale)" if is_perplexity(measure) else ""
    figure_, axes = lines_sheet(
        340,
        title=f"{measure}{scale}; {better(measure)}",
        below="tokens of text (log scale)",
        names=[name for _, name, _ in ends],
    )
    axes.set_xscale("log", base=2)
    width = (lengths[-1] / lengths[0]) ** 0.05 if len(lengths) > 1 else 1.2
    axes.set_xlim(lengths[0] / width, lengths[-1] * width)
    fix_ticks(axes.xaxis, lengths)
    for index, (row, look) in enumerate(zip(evaluation.rows, looks(evaluation), strict=True)):
        there = [(length, at) for length in lengths if (at := row.estimate(measure, length)) is not None]
        if not there:
            continue
        # A little apart, so that bars do not hide each other.
        places = [length * width ** (0.5 * (index / max(len(evaluation.rows) - 1, 1) - 0.5)) for length, _ in there]
        axes.plot(
            places,
            [at.mean for _, at in there],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            linewidth=1.6,
            markersize=5,
            markeredgecolor=PAPER,
            markeredgewidth=0.8,
        )
        for place, (_, at) in zip(places, there, strict=True):
            if at.low is not None and at.high is not None:
                axes.plot([place, place], [at.low, at.high], color=look.colour, linewidth=0.8, alpha=0.5)
    if is_perplexity(measure):
        axes.set_yscale("log")
        tick_heights(axes)
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 1.02))
        axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    label_line_ends(axes, ends)
    return figure_
