"""One HTML page about an evaluation: the best checkpoint at the longest length, the curve by length, the tables."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from posembed.evaluation.measures import MEASURES
from posembed.evaluation.results import Evaluation
from posembed.evaluation.runnable import KINDS
from posembed.report.evaluation.tables import answer, better, legend, tables
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Lines, Section, picture, render_page, write_page


def write_evaluation_page(evaluation: Evaluation, path: str | Path) -> Path:
    """Write an evaluation as one self-contained HTML file, whole or not at all.

    Raises:
        ArgumentError: the file cannot be written there.
    """
    return write_page(Path(path), render(evaluation), option="--report")


def render(evaluation: Evaluation) -> str:
    measure, longest = evaluation.measures[0], evaluation.lengths[-1]
    names = [row.name for row in evaluation.checkpoints]
    sentences = " ".join(answer(evaluation))
    curve = picture(
        length_figure(evaluation, measure),
        name="lengths",
        described=sentences,
        caption=f"{measure.capitalize()} by length in tokens. Shaded: 95% intervals over texts. Rows with overlapping "
        "intervals can still differ significantly, because they are measured on the same texts.",
    )
    return render_page(
        title=f"How good {'is it' if len(names) == 1 else 'are they'} with {longest:,} tokens of text?",
        about=f"{', '.join(names)}: {KINDS[evaluation.kind]}{'' if len(names) == 1 else ', in several versions'}, "
        f"on {evaluation.texts:,} texts.",
        answer=[sentences],
        sections=[
            Section("", (curve,)),
            Section("The numbers", tuple(tables(evaluation)), says=legend(evaluation)),
            Section("How it was measured", (Lines(evaluation.notes),)),
        ],
    )


def length_figure(evaluation: Evaluation, measure: str) -> Figure:
    """The measure by length, one line per row."""
    lengths, perplexity = evaluation.lengths, MEASURES[measure].perplexity
    lines = [
        Line.of(
            row.name,
            {length: row.estimate(measure, length) for length in lengths},
            end=None if row.fits(lengths[-1]) else row.length,
        )
        for row in evaluation.rows
    ]
    ends = [end for line in lines for at in line.points.values() for end in (at.low, at.value, at.high)]
    finite = [end for end in ends if end is not None and math.isfinite(end)]
    return line_chart(
        lines,
        names=[row.name for row in evaluation.checkpoints],
        title=f"{measure}{'' if perplexity else ', percent'}; {better(MEASURES[measure])}",
        below="tokens of text",
        ticks=lengths,
        logarithmic=(min(finite, default=1.0) / 1.05, max(finite, default=1.0) * 1.05) if perplexity else None,
        baselines=[row.name for row in evaluation.rows if row.baseline],
        past_end="takes at most",
    )
