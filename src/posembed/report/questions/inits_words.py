"""What different initial values of a table were worth, in words."""

from __future__ import annotations

import math
from typing import Literal

from posembed.lab.questions.inits import InitRow, InitSummary
from posembed.report.words import failures, interval, listed, number, runs_per, signed
from posembed.statistics import Estimate

Outcome = Literal["lower", "higher", "not significant", "unknown"]


def loss_number(value: float) -> str:
    """Formats a loss in nats: 1.384."""
    return f"{value:.3f}"


def outcome(difference: Estimate | None, *, same: float = 0.0) -> Outcome:
    """Returns whether a difference (``same`` 0) or a ratio (1) is significant; "unknown" without an interval."""
    side = None if difference is None else difference.side_of(same)
    return "unknown" if side is None else {"below": "lower", "above": "higher"}.get(side, "not significant")  # type: ignore[return-value]


def best_first(summary: InitSummary) -> list[InitRow]:
    """Sorts the rows by held-out loss, those without one last."""
    return sorted(summary.rows, key=lambda row: row.loss.value if row.loss is not None else math.inf)


def answer(summary: InitSummary) -> list[str]:
    """Returns paragraphs: which table ends lowest, which learns fastest, what is left of the initial values."""
    parts = (_losses(summary), _steps(summary), _rows_after(summary))
    return [text for text in parts if text]


def _losses(summary: InitSummary) -> str:
    rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
    left_out = "".join(f" {sentence}" for sentence in failures(summary.rows))
    if not rows:
        return left_out.strip()
    (best, lowest), (last, highest) = rows[0], rows[-1]
    first = (
        f"The lowest held-out loss after {summary.steps:,} steps is that of {best.name}, "
        f"{loss_number(lowest.value)} nats"
    )
    others = [(row, row.versus_reference) for row, _ in rows if row.versus_reference is not None]
    if not others:
        return f"{first}.{left_out}"
    outcomes = {row.name: outcome(difference) for row, difference in others}
    if set(outcomes.values()) == {"unknown"}:
        single = all(len(row.seeds) == 1 for row, _ in rows)
        runs = "one run per table" if single else f"one seed that others share with {summary.reference}"
        return (
            f"{first}; the highest is that of {last.name}, {loss_number(highest.value)}. There is {runs}, so no "
            f"interval; small differences may be chance.{left_out}"
        )
    parts = []
    for kind in ("lower", "higher"):
        named = [
            f"{abs(difference.value):.3f} with {row.name} ({interval(difference, signed)})"
            for row, difference in others
            if outcomes[row.name] == kind
        ]
        if named:
            parts.append(f"{kind} by {listed(named)}")
    same = [row.name for row, _ in others if outcomes[row.name] == "not significant"]
    if same:
        parts.append(f"not significantly different with {listed(same)}")
    unknown = [row.name for row, _ in others if outcomes[row.name] == "unknown"]
    if unknown:
        parts.append(f"uncertain with {listed(unknown)}, which share only one seed with it")
    return (
        f"{first} ({runs_per(summary.rows, 'table')}). Compared with {summary.reference}, paired by seed, the loss is "
        f"{'; '.join(parts)}.{left_out}"
    )


def _steps(summary: InitSummary) -> str:
    """Names the fastest and the slowest to reach the loss."""
    ratios = [
        (row.name, row.steps_versus_reference)
        for row in best_first(summary)
        if row.steps_versus_reference is not None and summary.loss is not None
    ]
    if not ratios or summary.loss is None:
        return ""
    ratios.sort(key=lambda pair: pair[1].value)
    parts = [
        f"{name}{'' if index else ' takes'} {number(ratio.value)} times as many"
        f"{'' if index else f' steps as {summary.reference}'}{f' ({interval(ratio)})' if interval(ratio) else ''}"
        for index, (name, ratio) in enumerate(dict.fromkeys((ratios[0], ratios[-1])))
    ]
    never = [row.name for row in summary.rows if row.seeds and row.steps_reached < len(row.seeds)]
    ends = f" Not every run from {listed(never)} reached it." if never else ""
    return f"To reach a training loss of {loss_number(summary.loss)}, {listed(parts)}.{ends}"


def _rows_after(summary: InitSummary) -> str:
    """Reports how much of the initial values is left."""
    rows = [
        (row.cosine.value, row.name, row.moved_times.value)
        for row in summary.rows
        if row.cosine is not None and row.moved_times is not None
    ]
    if len(rows) < 2:
        return ""
    (low, least, moved_most), (high, most, moved_least) = min(rows), max(rows)
    found = [row.effective_rank_after.value for row in summary.rows if row.effective_rank_after is not None]
    ranks = list(dict.fromkeys((f"{min(found):.1f}", f"{max(found):.1f}")))
    return (
        f"{least} kept least of its initial values: its rows moved {number(moved_most)} times their initial scale, and "
        f"the cosine between before and after is {low:.2f}. {most} kept most: {number(moved_least)} times, and "
        f"{high:.2f}. The effective rank of the trained tables is {' to '.join(ranks)}."
    )
