"""What is special about evaluations on the page of all results: their plan, their baselines and their notes."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from posembed.evaluation.plan import Plan, PlannedRow
from posembed.evaluation.results import UNITS, Evaluation
from posembed.evaluation.runnable import KINDS
from posembed.measure.summary import Summary
from posembed.plots.charts import Line, line_chart
from posembed.report import answers
from posembed.report.comparisons import comparison_figure
from posembed.report.page import (
    Cell,
    Column,
    Lines,
    Picture,
    Section,
    Table,
    picture,
    render_page,
    table_of,
    write_page,
)
from posembed.report.words import capitalised
from posembed.statistics import INTERVAL

FEW_BASELINES = 3
"""With more baselines than this, the figure by length has only the best of them and the reference."""


def tables(evaluation: Evaluation) -> list[Table]:
    """Returns the tables of the terminal: one per measure."""
    found = evaluation.summary()
    return [answers.main_table(found, metric=metric) for metric in found.metrics]


def paragraphs(evaluation: Evaluation) -> list[str]:
    return [*answer(evaluation), legend(evaluation), *evaluation.notes]


def answer(evaluation: Evaluation) -> list[str]:
    return [each for each in answers.paragraphs(evaluation.summary()) if each]


def plan_table(plan: Plan) -> Table:
    """Returns the tokens that each row reads at each length, if nothing is kept."""

    def at(length: int) -> Column:
        def cell(row: PlannedRow) -> Cell:
            job = row.jobs[length]
            if job is None:
                return Cell("too long", kind="muted")
            return Cell(f"{job.tokens:,}", note="kept" if job.key in plan.kept else "")

        return Cell(f"{length:,}", rank=plan.lengths[-1] - length), cell

    return table_of(
        plan.rows, "Tokens to read, by text length in tokens", "", *map(at, plan.lengths), first="checkpoint"
    )


def plan_words(plan: Plan) -> list[str]:
    jobs, missing = len(plan.jobs), plan.missing
    tokens = sum(job.tokens for job in missing.values())
    return [
        f"To measure: {', '.join(plan.measures)}. Rows and lengths that read the same tokens in the same way are "
        f"measured once: {jobs} measurements in all, of which {jobs - len(missing)} are kept. "
        f"{tokens:,} tokens remain to be read.",
        *plan.notes,
    ]


def legend(evaluation: Evaluation) -> str:
    """Returns sentences on the intervals, and on what rows are compared with."""
    units, same = UNITS[evaluation.unit], "size" if evaluation.kind == "images" else "length"
    if evaluation.texts < 2:
        return f"With one {evaluation.unit}, there are no intervals, and any difference may be chance."
    intervals = (
        f"Intervals are {INTERVAL}s over {evaluation.texts:,} {units}; a value has none if all {units} have the same."
    )
    if len(evaluation.rows) == 1:
        return intervals
    return (
        f"{intervals} Reference: {evaluation.reference.name}. Rows are compared with it at the same {same}, paired by "
        f"{evaluation.unit} (perplexities by their ratio), so rows with overlapping intervals can still differ "
        "significantly. Of many rows, the best is partly the best by chance."
    )


def write_evaluation_page(evaluation: Evaluation, path: str | Path) -> Path:
    """Writes an evaluation as one self-contained HTML file. Raises the errors of ``write_page``."""
    return write_page(Path(path), render(evaluation))


def render(evaluation: Evaluation) -> str:
    units = UNITS[evaluation.unit]
    return render_page(
        title=f"How good is the model at {evaluation.lengths[-1]:,} tokens of text?",
        about=f"{capitalised(KINDS[evaluation.kind])}, on {evaluation.texts:,} {units}: "
        f"{', '.join(row.name for row in evaluation.checkpoints)}.",
        answer=answer(evaluation),
        sections=[
            Section("", (by_length(evaluation), *comparisons(evaluation))),
            Section("The numbers", numbers(evaluation), says=legend(evaluation)),
            Section("How it was measured", (Lines(evaluation.notes),)),
        ],
    )


def numbers(evaluation: Evaluation) -> tuple[Table, ...]:
    found = answers.tables(evaluation.summary(), values=False)
    return tuple(table for table in (*tables(evaluation), *found) if table.rows)


def by_length(evaluation: Evaluation) -> Picture:
    measure, units = evaluation.measures[0], UNITS[evaluation.unit]
    return picture(
        length_figure(evaluation),
        name="lengths",
        described=" ".join(answer(evaluation)),
        caption=f"{capitalised(measure)} by text length in tokens. Shaded bands are {INTERVAL}s over {units}.",
    )


def comparisons(evaluation: Evaluation) -> list[Picture]:
    """Returns the figure of every row compared with the reference at the longest length."""
    found: Summary = evaluation.summary()
    x, reference = evaluation.lengths[-1], evaluation.reference.name
    compared = found.all_versus(found.headline, x)
    if not compared:
        return []
    figure = comparison_figure(compared, found.names, reference)
    unit = "pixels" if evaluation.kind == "images" else "tokens"
    caption = (
        f"Every row at {x:,} {unit}, compared with {reference}. Thin bars are paired {INTERVAL}s over "
        f"{UNITS[evaluation.unit]}; thick bars, if any, are {INTERVAL}s over seeds."
    )
    return [picture(figure, name="comparisons", described=" ".join(answer(evaluation)), caption=caption)]


def length_figure(evaluation: Evaluation) -> Figure:
    """Draws the main measure by length. Of many baselines, it has the reference and the best row."""
    found, lengths = evaluation.summary(), evaluation.lengths
    metric, ends = found.headline, list[float]()
    shown = evaluation.rows
    if len(shown) - len(evaluation.checkpoints) > FEW_BASELINES:
        best = evaluation.best(metric.name, lengths[-1], shown)
        shown = tuple(row for row in shown if not row.baseline or row in (evaluation.reference, best))
    lines = [
        Line.of(
            row.name,
            {length: found.mean(metric, row.name, length) for length in lengths},
            end=None if row.fits(lengths[-1]) else row.length,
        )
        for row in shown
    ]
    for estimate in (each for line in lines for each in line.points.values()):
        ends += [end for end in (estimate.low, estimate.value, estimate.high) if end is not None and math.isfinite(end)]
    return line_chart(
        lines,
        names=[row.name for row in evaluation.checkpoints],
        title=f"{metric.name}{'' if metric.kind == 'log' else ', percent'}; {metric.better}er is better",
        below="tokens of text",
        ticks=lengths,
        logarithmic=(min(ends, default=1) / 1.05, max(ends, default=1) * 1.05) if metric.kind == "log" else None,
        baselines=[row.name for row in shown if row.baseline],
        past_end="takes at most",
    )
