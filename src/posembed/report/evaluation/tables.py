"""An evaluation in tables and sentences, for the page, the terminal and the benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from posembed.evaluation.measures import MEASURES, Measure, Verdict
from posembed.evaluation.results import Evaluation, Row
from posembed.report.page import Cell, Table
from posembed.report.page import Row as TableRow
from posembed.report.words import interval, listed, number, signed
from posembed.statistics import INTERVAL, Estimate

MARKS: dict[Verdict, str] = {"better": "+", "worse": "-", "not significant": "="}
KINDS: dict[Verdict, str] = {"better": "good", "worse": "bad", "not significant": "muted", "equal": "muted"}


def tables(evaluation: Evaluation) -> list[Table]:
    """One table per measure: values by length, and the difference from the reference at the longest length."""
    return [table(evaluation, MEASURES[name]) for name in evaluation.measures]


def table(evaluation: Evaluation, measure: Measure) -> Table:
    """Each value has a mark that compares it with the reference at the same length. See ``legend``."""
    reference, longest = evaluation.reference, evaluation.lengths[-1]

    def value_cell(row: Row, length: int) -> Cell:
        found, versus = row.estimate(measure.name, length), row.versus(reference, measure.name, length)
        if found is None:
            return Cell("-" if row.fits(length) else "too long", kind="muted")
        verdict = measure.verdict(versus)
        note = f"{half_width(measure, found)} {MARKS.get(verdict, '')}".strip()
        return Cell(value(measure, found.value), note=note, kind="" if verdict == "equal" else KINDS.get(verdict, ""))

    def difference_cell(row: Row) -> Cell:
        versus = None if row is reference else row.versus(reference, measure.name, longest)
        if versus is None:
            return Cell("")
        verdict = measure.verdict(versus)
        note = f"{half_width(measure, versus)} {verdict}".strip()
        return Cell(difference(measure, versus.value), note=note, kind=KINDS[verdict])

    title = f"{measure.name.capitalize()} by length in tokens ({better(measure)})"
    head = [Cell(f"{length:,}", rank=longest - length) for length in evaluation.lengths]
    rows = {row.name: [value_cell(row, length) for length in evaluation.lengths] for row in evaluation.rows}
    if len(rows) > 1:
        head.append(Cell(f"{'ratio' if measure.perplexity else 'difference'} at {longest:,}"))
        for row in evaluation.rows:
            rows[row.name].append(difference_cell(row))
    table_rows = tuple(TableRow(name, tuple(cells)) for name, cells in rows.items())
    return Table(title, "", tuple(head), table_rows, first="checkpoint")


def legend(evaluation: Evaluation) -> str:
    """How to read the tables."""
    if evaluation.texts < 2:
        return "One text: there are no intervals, and any difference may be chance."
    intervals = f"±: half the {INTERVAL} over texts; not shown if all texts have the same value."
    if len(evaluation.rows) == 1:
        return intervals
    return (
        f"{intervals} Reference: {evaluation.reference.name}. Compared with it at the same length, paired by text, + "
        "is significantly better, - significantly worse, = not significant. Last column: the difference from it at "
        f"{evaluation.lengths[-1]:,} tokens (for perplexities, the ratio)."
    )


def paragraphs(evaluation: Evaluation) -> list[str]:
    """The text below the tables: the answer, the legend and the notes."""
    return [" ".join(answer(evaluation)), legend(evaluation), *evaluation.notes]


def answer(evaluation: Evaluation) -> list[str]:
    """The best checkpoint at the longest length, compared with the reference and with the others, in sentences."""
    measure, length, reference = MEASURES[evaluation.measures[0]], evaluation.lengths[-1], evaluation.reference
    best = evaluation.best(measure.name, length)
    found = None if best is None else best.estimate(measure.name, length)
    if best is None or found is None:
        return [f"No checkpoint has a value at {length:,} tokens."]
    rivals = [row for row in evaluation.checkpoints if row is not best]
    first = "has the best" if rivals else "has a"
    known = f"{INTERVAL} {span(measure, found)}, " if found.low is not None else ""
    sentences = [
        f"At {length:,} tokens, {best.name} {first} {measure.name} of {value(measure, found.value)} "
        f"({known}{evaluation.texts:,} texts)."
    ]
    if reference is not best:
        sentences += compared(best, reference, measure, length)
    verdicts = {row.name: measure.verdict(row.versus(best, measure.name, length)) for row in rivals}
    near = [name for name, verdict in verdicts.items() if verdict in ("not significant", "equal")]
    far = [name for name, verdict in verdicts.items() if verdict == "worse"]
    if near:
        sentences.append(f"Not significantly different from {best.name}: {listed(near)}.")
    if far:
        sentences.append(f"Significantly worse than {best.name}: {listed(far)}.")
    return sentences


def compared(row: Row, reference: Row, measure: Measure, length: int) -> Iterator[str]:
    """One sentence: how the row differs from the reference, and by how much."""
    versus, theirs = row.versus(reference, measure.name, length), reference.estimate(measure.name, length)
    if versus is None or theirs is None:
        return
    verdict = measure.verdict(versus)
    if verdict == "equal":
        yield f"“{reference.name}” has the same value for every text."
        return
    start = "not significantly different from" if verdict == "not significant" else f"significantly {verdict} than"
    by = difference(measure, versus.value) + (" times" if measure.perplexity else "")
    ends = interval(versus, lambda end: difference(measure, end))
    known = f", paired {INTERVAL} {ends}" if ends else ""
    yield f"This is {start} “{reference.name}” with {value(measure, theirs.value)} ({by}{known})."


def better(measure: Measure) -> str:
    return f"{'lower' if measure.perplexity else 'higher'} is better"


def value(measure: Measure, mean: float) -> str:
    return number(mean) if measure.perplexity else f"{mean:.3f}"


def difference(measure: Measure, mean: float) -> str:
    """ "−0.064"; for a perplexity the ratio, "1.07"."""
    return number(mean) if measure.perplexity else signed(mean)


def half_width(measure: Measure, found: Estimate) -> str:
    """ "±.021"; empty if there is no interval or if all texts have the same value."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    half = (found.high - found.low) / 2
    return "±" + (f"{half:.2f}" if measure.perplexity else f"{half:.3f}").removeprefix("0")


def span(measure: Measure, found: Estimate) -> str:
    """ "0.764–0.806". A share ends at 0 and 1, whatever Student's t gives."""
    most = math.inf if measure.perplexity else 1.0
    return interval(found, lambda end: value(measure, min(max(end, 0.0), most)))
