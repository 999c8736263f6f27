"""An evaluation in words and cells, for the page and the terminal: what was best, and what can be told apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

from posembed.evaluation.results import Evaluation, Row, is_perplexity, told
from posembed.report.words import interval, listed, number
from posembed.statistics import Estimate

MARKS = {"better": "+", "worse": "-", "untold": "=", "equal": "", "": ""}


def figure(measure: str, value: float) -> str:
    return number(value) if is_perplexity(measure) else f"{value:.3f}"


def difference(measure: str, value: float) -> str:
    """ "−0.064"; a ratio of perplexities as "1.07"."""
    return number(value) if is_perplexity(measure) else f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def plus_minus(measure: str, found: Estimate) -> str:
    """Half the width of an interval, "±.021"; empty where none is known, or where all texts gave the same."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    half = (found.high - found.low) / 2
    return "±" + (f"{half:.2f}" if is_perplexity(measure) else f"{half:.3f}").removeprefix("0")


def cell(evaluation: Evaluation, row: Row, measure: str, length: int) -> str:
    """ "0.858 ±.021 +": the mark says how the row compares with the reference at the same length."""
    found = row.estimate(measure, length)
    if found is None:
        return "-" if row.fits(length) else "too long"
    mark = MARKS[told(measure, row.versus(evaluation.reference, measure, length))]
    return " ".join([figure(measure, found.mean), plus_minus(measure, found), mark or " "])


def legend(evaluation: Evaluation) -> str:
    """What the cells say."""
    if evaluation.texts < 2:
        return "One text: no interval is known, and any difference may be chance."
    return (
        "±: 95% interval over texts, none where all gave the same. + better and - worse than "
        f"{evaluation.reference.name} at the same length, = not to be told apart from it: by the interval of the "
        "differences text by text."
    )


def answer(evaluation: Evaluation) -> list[str]:
    """The best checkpoint at the longest length, against the reference and the others, a sentence each."""
    measure, length = evaluation.measures[0], evaluation.lengths[-1]
    best, reference = evaluation.best(measure, length), evaluation.reference
    if best is None:
        return [f"No checkpoint has a figure at {length:,} tokens."]
    found = best.estimate(measure, length)
    assert found is not None
    checkpoints = [row for row in evaluation.rows if not row.baseline]
    first = "has a" if len(checkpoints) == 1 else "has the best"
    known = f" (95% interval {span(measure, found)})" if span(measure, found) else ""
    sentences = [
        f"At {length:,} tokens, {best.name} {first} {measure} of {figure(measure, found.mean)}{known}, "
        f"over {evaluation.texts:,} texts."
    ]
    if reference is not best:
        sentences += against(best, reference, measure, length)
    rivals = [row for row in checkpoints if row is not best]
    near = [row.name for row in rivals if told(measure, row.versus(best, measure, length)) in ("untold", "equal")]
    far = [row.name for row in rivals if told(measure, row.versus(best, measure, length)) == "worse"]
    if near:
        sentences.append(f"From {best.name}, {listed(near)} cannot be told apart.")
    if far:
        sentences.append(f"{'Worse is' if len(far) == 1 else 'Worse are'} {listed(far)}.")
    return sentences


def against(row: Row, reference: Row, measure: str, length: int) -> Iterator[str]:
    """One sentence: better or worse than the reference, by how much, or not to be told apart."""
    versus, theirs = row.versus(reference, measure, length), reference.estimate(measure, length)
    if versus is None or theirs is None:
        return
    said = told(measure, versus)
    how = {"better": "better than", "worse": "worse than", "untold": "not to be told apart from"}
    if said in how:
        by = difference(measure, versus.mean) + (" times" if is_perplexity(measure) else "")
        yield (
            f"That is {how[said]} “{reference.name}”, {figure(measure, theirs.mean)}: {by} (paired interval "
            f"{difference_span(measure, versus)})."
        )
    elif said == "equal":
        yield f"“{reference.name}” gives the same in every text."


def differences(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """(name, difference or ratio, what it says) of each checkpoint against the reference at the longest length."""
    measure, length, reference = evaluation.measures[0], evaluation.lengths[-1], evaluation.reference
    words = {"untold": "not to be told apart", "equal": "the same"}
    lines = []
    for row in evaluation.rows:
        versus = row.versus(reference, measure, length)
        if row is not reference and versus is not None:
            said = told(measure, versus)
            times = "\N{MULTIPLICATION SIGN} " if is_perplexity(measure) else ""
            by = f"{times}{difference(measure, versus.mean)} {plus_minus(measure, versus)}".rstrip()
            lines.append((row.name, by, words.get(said, said)))
    return lines


def span(measure: str, found: Estimate) -> str:
    """ "0.764–0.806"; empty where none is known. A share ends at 0 and 1, whatever Student's t says."""
    most = math.inf if is_perplexity(measure) else 1.0
    return interval(found, lambda value: figure(measure, min(max(value, 0.0), most)))


def difference_span(measure: str, versus: Estimate) -> str:
    return interval(versus, lambda value: difference(measure, value))
