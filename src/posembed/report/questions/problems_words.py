"""Which encodings solve larger problems, in words."""

from __future__ import annotations

from posembed.lab.questions.problems import SOLVED, ProblemRow, ProblemSummary
from posembed.report.words import called, capitalised, failures, listed, names_of, runs_per
from posembed.statistics import INTERVAL, Estimate


def answer(summary: ProblemSummary) -> list[str]:
    """Returns who solves larger problems than in training, and how large; then who does not; then how certain it is."""
    others = " ".join((_not_beyond(summary), *failures(summary.rows))).strip()
    return [text for text in (_beyond(summary), others, _certainty(summary)) if text]


def best_first(summary: ProblemSummary) -> list[ProblemRow]:
    """Sorts by the largest size solved, then by the exact match over all sizes; failed rows come last."""

    def key(row: ProblemRow) -> tuple[bool, int, float]:
        shares = [share.value for share in row.exact_match.values() if share is not None]
        return not row.seeds, -(row.solves or 0), -sum(shares)

    return sorted(summary.rows, key=key)


def ends_at(row: ProblemRow, summary: ProblemSummary) -> int | None:
    """Returns the largest size for which an encoding has positions, if it has none at some tested size."""
    there = [size for size, value in row.exact_match.items() if value is not None]
    if not row.seeds or len(there) == len(summary.test_sizes):
        return None
    return max([summary.train_size, *there])


def solves_in_words(row: ProblemRow, summary: ProblemSummary) -> str:
    """Returns "30", "40+" for the largest tested size, or "under 5"; empty if nothing was measured."""
    if not row.seeds:
        return ""
    if row.solves is None:
        return f"under {min(summary.test_sizes):,}"
    return f"{row.solves:,}+" if row.solves == max(summary.test_sizes) else f"{row.solves:,}"


def percent(share: float) -> str:
    """Formats a share in percent: 0, 0.5, 47, 99.5, 100. Only exact shares become 100 or 0."""
    text = f"{100 * share:.0f}" if 0.1 <= share < 0.985 else f"{100 * share:.1f}".removesuffix(".0")
    if text == "100" and share < 1:
        return ">99.9"
    return "<0.1" if text == "0" and share > 0 else text


def share_interval(estimate: Estimate | None) -> str:
    """Formats the interval of a share in percent, limited to 0 and 100; empty if it is unknown."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    low, high = max(estimate.low, 0.0), min(estimate.high, 1.0)
    return f"{100 * low:.0f}\N{EN DASH}{100 * high:.0f}"


def _beyond(summary: ProblemSummary) -> str:
    trained, longest, unit = summary.train_size, max(summary.test_sizes), summary.unit
    if not any(row.seeds for row in summary.rows):
        return ""
    if longest <= trained:
        return f"Nothing was tested past the {trained:,} {unit} of training."
    lead = f"After training on {summary.problem} with up to {trained:,} {unit},"
    rows = [row for row in best_first(summary) if (row.solves or 0) > trained]
    if not rows:
        return f"{lead} no encoding solves any larger size tested."
    parts = [
        f"{called(row.name)} {'' if index else 'solves '}up to {row.solves:,}{_at_the_end(row, longest)}"
        for index, row in enumerate(rows)
    ]
    return f"{lead} {listed(parts)}."


def _at_the_end(row: ProblemRow, longest: int) -> str:
    """Returns the exact match at the largest size solved."""
    share = None if row.solves is None else row.exact_match[row.solves]
    if share is None:
        return ""
    known = f", {INTERVAL} {share_interval(share)}" if share_interval(share) else ""
    largest = ", the largest size tested" if row.solves == longest else ""
    return f"{largest} (exact match {percent(share.value)}%{known})"


def _not_beyond(summary: ProblemSummary) -> str:
    """Reports those that solve nothing larger than in training, grouped by what they solve."""
    rows = [row for row in best_first(summary) if row.seeds and (row.solves or 0) <= summary.train_size]
    ended = [row for row in rows if ends_at(row, summary) is not None]
    others = [row for row in rows if row not in ended]
    sentences = [
        f"{names_of(those)} {_stops(those, summary)}."
        for size in dict.fromkeys(row.solves for row in others)
        if (those := [row for row in others if row.solves == size])
    ]
    sentences += [
        f"{called(row.name)}, whose positions end at {ends_at(row, summary):,}, {_stops([row], summary)}."
        for row in ended
    ]
    return " ".join(map(capitalised, sentences))


def _stops(rows: list[ProblemRow], summary: ProblemSummary) -> str:
    several, size = len(rows) > 1, rows[0].solves
    if size is None:
        return f"{'do' if several else 'does'} not solve even {min(summary.test_sizes):,}"
    return f"{'solve' if several else 'solves'} up to {size:,}"


def _certainty(summary: ProblemSummary) -> str:
    lead = (
        f"A size counts as solved if at least {SOLVED:.0%} of its problems, and of those of every smaller size tested, "
        f"are answered without a mistake; {runs_per(summary.rows)}"
    )
    apart = [
        f"{called(row.name)} {listed(['none' if size is None else f'{size:,}' for size in row.solves_by_seed])}"
        for row in best_first(summary)
        if len(set(row.solves_by_seed)) > 1
    ]
    if apart:
        return f"{lead}. The runs differ: by seed, {'; '.join(apart)}."
    return f"{lead}." if any(len(row.seeds) > 1 for row in summary.rows) else f"{lead}, so there are no intervals."
