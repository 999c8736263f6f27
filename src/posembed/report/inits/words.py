"""What the starts of a table were worth, in plain words, shared by the page and the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from posembed.report.words import interval, listed, number, runs_of_each

if TYPE_CHECKING:
    from posembed.lab.questions.inits import InitRow, InitSummary
    from posembed.statistics import Estimate

MINUS = "\N{MINUS SIGN}"


def loss_number(value: float) -> str:
    """A loss in nats: 1.384."""
    return f"{value:.3f}"


def signed(value: float) -> str:
    """A difference of losses: +0.012, −0.004."""
    return f"{value:+.3f}".replace("-", MINUS)


def told(difference: Estimate | None, *, same: float = 0.0) -> str:
    """ "lower", "higher" or "untold": whether an interval leaves ``same`` out; "unknown" where there is none."""
    if difference is None or difference.low is None or difference.high is None:
        return "unknown"
    return "lower" if difference.high < same else "higher" if difference.low > same else "untold"


def best_first(summary: InitSummary) -> list[InitRow]:
    """The rows by held-out loss, those without one last."""
    return sorted(summary.rows, key=lambda row: row.loss.mean if row.loss is not None else math.inf)


def answer(summary: InitSummary) -> list[str]:
    """Paragraphs: which start ends lowest; which gets there soonest; what is left of a start."""
    parts = (_losses(summary), _steps(summary), _rows_after(summary))
    return [text for text in parts if text]


def _losses(summary: InitSummary) -> str:
    rows = [row for row in best_first(summary) if row.loss is not None]
    failed = [
        row.init + (f" in {len(row.failures)} of {len(row.failures) + len(row.seeds)} runs" if row.seeds else "")
        for row in summary.rows
        if row.failures
    ]
    left_out = f" Training failed from {listed(failed)}." if failed else ""
    if not rows:
        return left_out.strip()
    best, loss = rows[0], rows[0].loss
    assert loss is not None
    first = f"The lowest held-out loss after {summary.steps:,} steps is {best.init}'s, {loss_number(loss.mean)} nats"
    others = [row for row in rows if row.versus_reference is not None]
    if not others:
        return f"{first}.{left_out}"
    if all(told(row.versus_reference) == "unknown" for row in others):
        last, most = rows[-1], rows[-1].loss
        assert most is not None
        single = all(len(row.seeds) == 1 for row in rows)
        runs = "a single run of each" if single else f"one seed that others share with {summary.reference}"
        return (
            f"{first}, the highest {last.init}'s, {loss_number(most.mean)}; that is from {runs}, so "
            f"no interval is known, and small differences may be chance.{left_out}"
        )
    parts = []
    for kind, ends in (("lower", "lower"), ("higher", "higher")):
        named = [
            f"{row.init} by {abs(_mean(row.versus_reference)):.3f} ({interval(row.versus_reference, signed)})"
            for row in others
            if told(row.versus_reference) == kind
        ]
        if named:
            parts.append(f"{listed(named)} {'end' if len(named) > 1 else 'ends'} {ends}")
    alike = [row.init for row in others if told(row.versus_reference) == "untold"]
    if alike:
        parts.append(f"{listed(alike)} cannot be told apart from it")
    unknown = [row.init for row in others if told(row.versus_reference) == "unknown"]
    if unknown:
        parts.append(f"of {listed(unknown)} no interval is known, from one shared seed")
    return (
        f"{first} ({runs_of_each(summary.rows)}). Against {summary.reference}, paired by seed, "
        f"{'; '.join(parts)}.{left_out}"
    )


def _steps(summary: InitSummary) -> str:
    """Who gets to the loss in how many times the reference's steps."""
    rows = [row for row in best_first(summary) if row.steps_versus_reference is not None]
    if not rows or summary.loss is None:
        return ""
    by_ratio = sorted(rows, key=lambda row: _mean(row.steps_versus_reference))
    soonest, latest = by_ratio[0], by_ratio[-1]
    said = [
        f"{row.init} takes {number(_mean(row.steps_versus_reference))} times as many steps as {summary.reference}"
        + (f" ({known})" if (known := interval(row.steps_versus_reference)) else "")
        for row in dict.fromkeys((soonest, latest))
    ]
    never = [row.init for row in summary.rows if row.seeds and row.steps_reached < len(row.seeds)]
    ends = f" Not every run from {listed(never)} came down to it." if never else ""
    return f"To a training loss of {loss_number(summary.loss)}, {listed(said)}.{ends}"


def _rows_after(summary: InitSummary) -> str:
    """How much of the starts is left."""
    rows = [row for row in summary.rows if row.cosine is not None and row.moved_times is not None]
    if len(rows) < 2:
        return ""
    by_cosine = sorted(rows, key=lambda row: _mean(row.cosine))
    least, most = by_cosine[0], by_cosine[-1]
    ranks = [row.effective_rank_after.mean for row in summary.rows if row.effective_rank_after is not None]
    return (
        f"Least is left of {least.init}: its rows moved {number(_mean(least.moved_times))} times their own length "
        f"(cosine of before and after {_mean(least.cosine):.2f}); most of {most.init}: "
        f"{number(_mean(most.moved_times))} times ({_mean(most.cosine):.2f}). The effective rank of the trained "
        f"tables is {min(ranks):.1f} to {max(ranks):.1f}."
    )


def _mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean
