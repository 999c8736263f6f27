"""One HTML page about an evaluation: the best checkpoint at the longest length, the curve by length, the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posembed.evaluation.measures import MEASURES
from posembed.evaluation.results import Evaluation, Row
from posembed.evaluation.runnable import KINDS
from posembed.report.drawing import MARKERS, MUTED, PAPER, SERIES, fix_ticks, lines_sheet, tick_heights
from posembed.report.evaluation.tables import answer, better, legend, tables
from posembed.report.labels import label_line_ends
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
        caption=f"{measure.capitalize()} by length in tokens, with 95% intervals over texts. Rows with overlapping "
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


def looks(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """How lines are drawn: checkpoints in colours, dashed when the colours run out; baselines grey and dotted."""
    found: list[dict[str, Any]] = []
    checkpoints = 0
    for row in rows:
        if row.baseline:
            found.append({"color": MUTED, "linestyle": ":", "marker": "."})
        else:
            again, turn = divmod(checkpoints, len(SERIES))
            found.append({"color": SERIES[turn], "linestyle": "--" if again else "-", "marker": MARKERS[turn]})
            checkpoints += 1
    return found


def length_figure(evaluation: Evaluation, measure: str) -> Figure:
    """The measure by length, one line per row, with bars for the intervals over texts."""
    lengths, rows, perplexity = evaluation.lengths, evaluation.rows, MEASURES[measure].perplexity
    found = [{length: row.estimate(measure, length) for length in lengths} for row in rows]
    ends = [
        (last.value, row.name, look["color"])
        for row, look, by_length in zip(rows, looks(rows), found, strict=True)
        if (last := by_length[lengths[-1]]) is not None
    ]
    figure, axes = lines_sheet(
        340,
        title=f"{measure}{' (log scale)' if perplexity else ''}; {better(MEASURES[measure])}",
        below="tokens of text (log scale)",
        names=[name for _, name, _ in ends],
    )
    axes.set_xscale("log", base=2)
    width = (lengths[-1] / lengths[0]) ** 0.05 if len(lengths) > 1 else 1.2
    axes.set_xlim(lengths[0] / width, lengths[-1] * width)
    fix_ticks(axes.xaxis, lengths)
    for index, (look, by_length) in enumerate(zip(looks(rows), found, strict=True)):
        # Shifted a little, so that bars do not hide each other.
        shift = width ** (0.5 * (index / max(len(rows) - 1, 1) - 0.5))
        points = [(length * shift, at) for length, at in by_length.items() if at is not None]
        if points:
            xs, means = [x for x, _ in points], [at.value for _, at in points]
            axes.plot(xs, means, **look, linewidth=1.6, markersize=5, markeredgecolor=PAPER, markeredgewidth=0.8)
        for x, at in points:
            if at.low is not None and at.high is not None:
                axes.plot([x, x], [at.low, at.high], color=look["color"], linewidth=0.8, alpha=0.5)
    if perplexity:
        axes.set_yscale("log")
        tick_heights(axes)
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 1.02))
        axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    label_line_ends(axes, ends)
    return figure
