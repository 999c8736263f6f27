"""An evaluation as tables and sentences for the terminal and the benchmarks, and as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posembed.evaluation.measures import MEASURES, Measure, Verdict
from posembed.evaluation.plan import Plan, PlannedRow
from posembed.evaluation.results import UNITS, Evaluation, Row
from posembed.evaluation.runnable import KINDS
from posembed.plots.charts import Line, dots_figure, line_chart
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
from posembed.report.words import by_outcome, capitalised, interval, listed, number, signed
from posembed.statistics import INTERVAL, Estimate

MARKS: dict[Verdict, str] = {"better": "+", "worse": "-", "not significant": "="}
FEW_BASELINES = 3
"""With more baselines than this, one figure has only the best of them, and another has the differences of all."""
NAMES = 30
"""The most letters of a line of a name beside a figure."""
LOOKS: dict[Verdict, str] = {"better": "good", "worse": "bad", "not significant": "muted", "equal": "muted", "": ""}


def size_unit(evaluation: Evaluation) -> str:
    return "pixels" if evaluation.kind == "images" else "tokens"


def in_units(evaluation: Evaluation) -> str:
    return "image size in pixels" if evaluation.kind == "images" else "text length in tokens"


def tables(evaluation: Evaluation) -> list[Table]:
    return [table(evaluation, MEASURES[name]) for name in evaluation.measures]


def table(evaluation: Evaluation, measure: Measure) -> Table:
    """Returns a table of values by length, and of differences from the reference at the longest length. ``legend``
    returns the text that explains it."""
    reference, longest = evaluation.reference, evaluation.lengths[-1]

    def at(length: int) -> Column:
        def cell(row: Row) -> Cell:
            found, versus = row.estimate(measure.name, length), row.versus(reference, measure.name, length)
            if found is None:
                return Cell("-" if row.fits(length) else "too long", kind="muted")
            verdict = measure.verdict(versus)
            note = f"{half_width(measure, found)} {MARKS.get(verdict, '')}".strip()
            return Cell(value(measure, found.value), note=note, kind="" if verdict == "equal" else LOOKS[verdict])

        return Cell(f"{length:,}", rank=longest - length), cell

    def difference_cell(row: Row) -> Cell:
        versus = None if row is reference else row.versus(reference, measure.name, longest)
        if versus is None:
            return Cell("")
        verdict = measure.verdict(versus)
        note = f"{half_width(measure, versus)} {verdict}".strip()
        return Cell(difference(measure, versus.value), note=note, kind=LOOKS[verdict])

    columns = [at(length) for length in evaluation.lengths]
    if len(evaluation.rows) > 1:
        columns.append((f"{'ratio' if measure.perplexity else 'difference'} at {longest:,}", difference_cell))
    title = f"{capitalised(measure.name)} by {in_units(evaluation)} ({better(measure)})"
    return table_of(evaluation.rows, title, "", *columns, first="checkpoint")


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
    if evaluation.texts < 2:
        return f"With one {evaluation.unit}, there are no intervals, and any difference may be chance."
    units = UNITS[evaluation.unit]
    intervals = (
        f"± gives half the width of the {INTERVAL} over {units}; it is omitted if all {units} have the same value."
    )
    if len(evaluation.rows) == 1:
        return intervals
    same = "size" if evaluation.kind == "images" else "length"
    return (
        f"{intervals} Reference: {evaluation.reference.name}. Compared with the reference at the same {same}, paired "
        f"by {evaluation.unit}, + is significantly better, - is significantly worse, and = is not significant. "
        f"The last column gives the difference from the reference at {evaluation.lengths[-1]:,} "
        f"{size_unit(evaluation)}{' (for perplexities, the ratio)' if evaluation.kind != 'images' else ''}."
    )


def paragraphs(evaluation: Evaluation) -> list[str]:
    return [" ".join(answer(evaluation)), legend(evaluation), *evaluation.notes]


def answer(evaluation: Evaluation) -> list[str]:
    """Returns sentences on the best row of the table at the longest length, and on the best checkpoint: compared with
    the reference, with the other checkpoints and with the best row."""
    measure, length, reference = MEASURES[evaluation.measures[0]], evaluation.lengths[-1], evaluation.reference
    first, best = evaluation.best(measure.name, length, evaluation.rows), evaluation.best(measure.name, length)
    lead = None if first is None else first.estimate(measure.name, length)
    if first is None or lead is None:
        return [f"No row has a value at {length:,} {size_unit(evaluation)}."]
    ends = f"; {INTERVAL} {span(measure, lead)}" if lead.low is not None else ""
    name = f"“{first.name}”" if first.baseline else first.name
    sentences = [
        f"At {length:,} {size_unit(evaluation)}, {name} has the best {measure.name}: {value(measure, lead.value)} "
        f"({evaluation.texts:,} {UNITS[evaluation.unit]}{ends})."
    ]
    found = None if best is None else best.estimate(measure.name, length)
    if best is None or found is None:
        sentences.append("No checkpoint has a value at this length without a baseline.")
        return sentences + compared(evaluation, measure, first, [reference])
    if best is not first:
        of = "the best of the checkpoints without a baseline, " if len(evaluation.checkpoints) > 1 else ""
        sentences.append(f"{capitalised(f'{of}{best.name}')} has {value(measure, found.value)}.")
    versus, theirs = best.versus(reference, measure.name, length), reference.estimate(measure.name, length)
    if reference is not best and versus is not None and theirs is not None:
        by = difference(measure, versus.value) + (" times" if measure.perplexity else "")
        ends = interval(versus, lambda end: difference(measure, end))
        paired = f"{best.name} ({by}{f'; paired {INTERVAL} {ends}' if ends else ''})"
        than = f"“{reference.name}” with {value(measure, theirs.value)}"
        sentences += by_outcome(than, [(measure.verdict(versus), paired)], evaluation.unit)
    rivals = [row for row in evaluation.checkpoints if row is not best]
    verdicts = [(measure.verdict(row.versus(best, measure.name, length)), row.name) for row in rivals]
    sentences += by_outcome(best.name, verdicts, evaluation.unit)
    if first is not reference:
        sentences += compared(evaluation, measure, first, [best, reference])
    return sentences


def compared(evaluation: Evaluation, measure: Measure, first: Row, others: Sequence[Row]) -> list[str]:
    """Returns sentences that compare the best row, if it is a baseline, with other rows."""
    length = evaluation.lengths[-1]
    found = {row.name: measure.verdict(first.versus(row, measure.name, length)) for row in others if row is not first}
    sentences = []
    for verdict in dict.fromkeys(found.values() if first.baseline else ()):
        names = listed([f"“{name}”" for name, of_name in found.items() if of_name == verdict])
        sentences += by_outcome(names, [(verdict, f"“{first.name}”")], evaluation.unit)
    return sentences


def better(measure: Measure) -> str:
    return f"{'lower' if measure.perplexity else 'higher'} is better"


def value(measure: Measure, mean: float) -> str:
    return number(mean) if measure.perplexity else f"{mean:.3f}"


def difference(measure: Measure, mean: float) -> str:
    """Formats a difference, such as "−0.064", or the ratio of two perplexities, such as "1.12" or "1.013"."""
    return ratio(mean) if measure.perplexity else signed(mean)


def ratio(value: float) -> str:
    """Formats a ratio, with a third digit near 1, so that it can be told from 1."""
    return f"{value:.3f}" if 0 < abs(value - 1) < 0.1 else number(value)


def half_width(measure: Measure, found: Estimate) -> str:
    """Formats half the width of an interval, such as "±.021". Empty if the interval is unknown or has no width."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    half = (found.high - found.low) / 2
    return "±" + (f"{half:.2f}" if measure.perplexity and half >= 0.1 else f"{half:.3f}").removeprefix("0")


def span(measure: Measure, found: Estimate) -> str:
    """Formats an interval, such as "0.764–0.806". Student's t can exceed 0 and 1, so the ends of shares are clipped."""
    most = math.inf if measure.perplexity else 1.0
    return interval(found, lambda end: value(measure, min(max(end, 0.0), most)))


def write_evaluation_page(evaluation: Evaluation, path: str | Path) -> Path:
    """Writes an evaluation as one self-contained HTML file. Raises the errors of ``write_page``."""
    return write_page(Path(path), render(evaluation))


def render(evaluation: Evaluation) -> str:
    measure, sentences, units = evaluation.measures[0], " ".join(answer(evaluation)), UNITS[evaluation.unit]
    curve = picture(
        length_figure(evaluation, measure),
        name="lengths",
        described=sentences,
        caption=f"{capitalised(measure)} by text length in tokens. Shaded bands are {INTERVAL}s over {units}. Rows "
        f"with overlapping intervals can still differ significantly, because they are measured on the same {units}.",
    )
    return render_page(
        title=f"How good is the model at {evaluation.lengths[-1]:,} tokens of text?",
        about=f"{capitalised(KINDS[evaluation.kind])}, on {evaluation.texts:,} {UNITS[evaluation.unit]}: "
        f"{', '.join(row.name for row in evaluation.checkpoints)}.",
        answer=[sentences],
        sections=[
            Section("", (curve, *([differences(evaluation)] if many_baselines(evaluation) else []))),
            Section("The numbers", tuple(tables(evaluation)), says=legend(evaluation)),
            Section("How it was measured", (Lines(evaluation.notes),)),
        ],
    )


def many_baselines(evaluation: Evaluation) -> bool:
    return len(evaluation.rows) - len(evaluation.checkpoints) > FEW_BASELINES


def rows_to_draw(evaluation: Evaluation, measure: str) -> list[Row]:
    """Returns the rows of the figure by length: all, or else the checkpoints, the reference and the best row."""
    if not many_baselines(evaluation):
        return list(evaluation.rows)
    best = evaluation.best(measure, evaluation.lengths[-1], evaluation.rows)
    return [row for row in evaluation.rows if not row.baseline or row in (evaluation.reference, best)]


def differences(evaluation: Evaluation) -> Picture:
    """Returns a picture of the difference of every row from the reference at the longest length."""
    measure, length, reference = MEASURES[evaluation.measures[0]], evaluation.lengths[-1], evaluation.reference
    versus = {row.name: row.versus(reference, measure.name, length) for row in evaluation.rows if row is not reference}
    known = [(row, found) for row in evaluation.rows if (found := versus.get(row.name)) is not None]
    rows = [
        (
            "\n".join(fill(name, NAMES) for name in (row.checkpoint, row.baseline) if name),
            replace(found, values=()),
            difference(measure, found.value),
        )
        for row, found in known
    ]
    sized = f"{length:,} {size_unit(evaluation)}"
    how = "divided by" if measure.perplexity else "minus"
    what = f"{measure.name} at {sized}, {how} that of “{reference.name}”"
    below = "ratio" if measure.perplexity else "difference"
    figure = dots_figure(rows, title=what, below=below, marked=measure.neutral)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(3))
    return picture(
        figure,
        name="differences",
        described=f"{what}: {'; '.join(f'{row.name}: {difference(measure, found.value)}' for row, found in known)}.",
        caption=f"Every row at {sized}, compared with “{reference.name}”, the dotted line. Lines are paired "
        f"{INTERVAL}s over {UNITS[evaluation.unit]}; a row whose line does not cross the dotted line differs "
        "significantly. Of many rows, the best is partly the best by chance.",
    )


def length_figure(evaluation: Evaluation, measure: str) -> Figure:
    lengths, perplexity, drawn = evaluation.lengths, MEASURES[measure].perplexity, rows_to_draw(evaluation, measure)
    lines = [
        Line.of(
            row.name,
            {length: row.estimate(measure, length) for length in lengths},
            end=None if row.fits(lengths[-1]) else row.length,
        )
        for row in drawn
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
        baselines=[row.name for row in drawn if row.baseline],
        past_end="takes at most",
    )
