"""The answer of an algorithmic comparison, in sentences made from its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posembed.report.words import called, listed, runs_of_each

if TYPE_CHECKING:
    from posembed.lab.questions.algorithms import AlgorithmRow, AlgorithmSummary
    from posembed.statistics import Estimate

SOLVED_IN_WORDS = "95% of its problems answered without a mistake, and so at every smaller size tested"


def answer(summary: AlgorithmSummary) -> list[str]:
    """Who solves larger problems than those trained on, and how large; then who does not, and who failed."""
    texts = [_beyond(summary), " ".join((_not_beyond(summary), _failing(summary))).strip(), _certainty(summary)]
    return [text for text in texts if text]


def best_first(summary: AlgorithmSummary) -> list[AlgorithmRow]:
    """By the largest size solved, then by the exact match at all sizes together; the failed last."""

    def key(row: AlgorithmRow) -> tuple[bool, int, float]:
        shares = [value.mean for value in row.exact_match.values() if value is not None]
        return not row.seeds, -(row.solves or 0), -sum(shares)

    return sorted(summary.rows, key=key)


def ends_at(row: AlgorithmRow, summary: AlgorithmSummary) -> int | None:
    """The size up to which an encoding has positions, if it has none at some size tested."""
    there = [size for size, value in row.exact_match.items() if value is not None]
    if not row.seeds or len(there) == len(summary.test_sizes):
        return None
    return max([summary.train_size, *there])


def solves_in_words(row: AlgorithmRow, summary: AlgorithmSummary) -> str:
    """ "30", "40+" where that is the largest tested, "under 5"; empty where nothing was measured."""
    if not row.seeds:
        return ""
    if row.solves is None:
        return f"under {min(summary.test_sizes):,}"
    return f"{row.solves:,}+" if row.solves == max(summary.test_sizes) else f"{row.solves:,}"


def percent(share: float) -> str:
    """A share in percent: 0, 0.5, 47, 99.5, 100; never 100 or 0 for what is not."""
    text = f"{100 * share:.0f}" if 0.1 <= share < 0.985 else f"{100 * share:.1f}".removesuffix(".0")
    if text == "100" and share < 1:
        return ">99.9"
    return "<0.1" if text == "0" and share > 0 else text


def interval(estimate: Estimate | None) -> str:
    """ "88–100", cut at 0 and 100, between which every share lies; empty where none is known."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    low, high = max(estimate.low, 0.0), min(estimate.high, 1.0)
    return f"{100 * low:.0f}\N{EN DASH}{100 * high:.0f}"


def _beyond(summary: AlgorithmSummary) -> str:
    trained, longest, unit = summary.train_size, max(summary.test_sizes), summary.unit
    if not any(row.seeds for row in summary.rows):
        return ""
    if longest <= trained:
        return f"Nothing was tested past the {trained:,} {unit} trained on."
    rows = [row for row in best_first(summary) if (row.solves or 0) > trained]
    if not rows:
        return f"Trained on {summary.problem} up to {trained:,} {unit}, no encoding solves any larger size tested."
    parts = [
        f"{called(row.encoding)} {'' if index else 'solves '}up to {row.solves:,}{_at_the_end(row, longest)}"
        for index, row in enumerate(rows)
    ]
    return f"Trained on {summary.problem} up to {trained:,} {unit}, {listed(parts)}."


def _at_the_end(row: AlgorithmRow, longest: int) -> str:
    """The exact match at the largest size solved, and that nothing larger was tested."""
    assert row.solves is not None
    share = row.exact_match[row.solves]
    assert share is not None
    note = f"exact match {percent(share.mean)}%"
    if interval(share):
        note += f", 95% interval {interval(share)}"
    if row.solves == longest:
        note += ", the largest tested"
    return f" ({note})"


def _not_beyond(summary: AlgorithmSummary) -> str:
    """Those that solve nothing larger than what was trained, together by what they solve."""
    trained = summary.train_size
    rows = [row for row in best_first(summary) if row.seeds and (row.solves or 0) <= trained]
    ended = [row for row in rows if ends_at(row, summary) is not None]
    others = [row for row in rows if row not in ended]
    sentences = [
        f"{_names(those)} {_stops(those, summary)}."
        for size in dict.fromkeys(row.solves for row in others)
        if (those := [row for row in others if row.solves == size])
    ]
    sentences += [
        f"{called(row.encoding)}, whose positions end at {ends_at(row, summary):,}, {_stops([row], summary)}."
        for row in ended
    ]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def _names(rows: list[AlgorithmRow]) -> str:
    return listed([called(row.encoding) for row in rows])


def _stops(rows: list[AlgorithmRow], summary: AlgorithmSummary) -> str:
    several, size = len(rows) > 1, rows[0].solves
    if size is None:
        return f"{'do' if several else 'does'} not solve even {min(summary.test_sizes):,}"
    return f"{'solve' if several else 'solves'} up to {size:,}"


def _failing(summary: AlgorithmSummary) -> str:
    return " ".join(
        f"{'A run' if row.seeds else 'Training'} with {called(row.encoding)} failed"
        f"{' and is left out' if row.seeds else ''} ({row.failures[0]})."
        for row in summary.rows
        if row.failures
    )


def _certainty(summary: AlgorithmSummary) -> str:
    said = f"A size counts as solved with {SOLVED_IN_WORDS}; {runs_of_each(summary.rows)}"
    several = any(len(row.seeds) > 1 for row in summary.rows)
    apart = [
        f"{called(row.encoding)}'s {listed([_plain(size) for size in row.solves_by_seed])}"
        for row in best_first(summary)
        if len(set(row.solves_by_seed)) > 1
    ]
    if apart:
        return f"{said}. The runs differ: by seed, {'; '.join(apart)}."
    return f"{said}." if several else f"{said}, so no interval is known."


def _plain(size: int | None) -> str:
    return "none" if size is None else f"{size:,}"
