"""What the answer about lengths claims: which names it groups, with which numbers, and what it leaves out.

The wording itself is in golden/lengths.txt.
"""

from __future__ import annotations

import math

import pytest

from made_up_runs import NO_REACH, TYPICAL, run, runs
from posembed.lab.question import Compared
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.lengths import LengthSummary
from posembed.lab.runs.results import RunResult
from posembed.report.questions.lengths import (
    PAGE,
    best_first,
    last_position,
    reach,
    reach_in_words,
    times,
    verdict,
)

DASH = "\N{EN DASH}"
FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"
FLAT = (4.0, 4.0, 4.0, 4.0)


def summary_of(results: list[RunResult], reference: str | None = None) -> LengthSummary:
    return QUESTIONS["lengths"].summarise(results, Compared(reference=reference))


def said(results: list[RunResult], reference: str | None = None) -> str:
    return " ".join(PAGE.answer(summary_of(results, reference)))


def verdict_of(*perplexities: float | None) -> tuple[str, str]:
    summary = summary_of([run("rope", perplexities)])
    found = verdict(summary.rows[0], summary)
    return found.kind, found.text


def test_verdicts_follow_the_worst_ratio_past_the_training_length() -> None:
    assert verdict_of(4.0, 3.9, 3.8, 3.7) == ("holds", "holds")
    assert verdict_of(4.0, 4.0, 4.07, 4.079) == ("holds", "holds")
    assert verdict_of(4.0, 4.0, 4.0, 4.09) == ("worse", "2% worse")
    assert verdict_of(4.0, 4.4, 4.0, 3.9) == ("worse", "10% worse at 128")
    assert verdict_of(4.0, 5.0, 6.0, 9.2) == ("worse", "2.3 times worse")
    assert verdict_of(4.0, 5.0, 600.0, 4800.0) == ("worse", "1,200 times worse")
    assert verdict_of(4.0, None, None, None) == ("ends", "ends at 64")
    assert verdict_of(4.0, 4.0, None, None) == ("ends", "ends at 128")


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_what_is_not_a_number_never_holds_nor_reaches(at: int, broken: float) -> None:
    perplexities = [4.0, 4.0, 4.0, 4.0]
    perplexities[at] = broken
    kind, text = verdict_of(*perplexities)
    assert (kind, text.split()[0]) == ("worse", "∞")
    assert probed(broken if math.isnan(broken) else -broken, 0.4, 0.4, 0.4) == (None, "under 32")


def test_verdict_of_what_failed() -> None:
    results = [run("rope", failure=FAILURE), run("rope", failure="out of words", seed=1)]
    for tried, text in ((results, "failed at step 90"), (results[1:], "failed")):
        summary = summary_of(tried)
        assert verdict(summary.rows[0], summary).text == text
    # One run that succeeded is enough for a verdict.
    summary = summary_of([*results, run("rope", seed=2)])
    assert verdict(summary.rows[0], summary).text == "5.9 times worse"


def test_nothing_is_claimed_where_nothing_was_compared() -> None:
    for lengths in ((128, 256), (32, 64)):
        summary = summary_of([run("rope", (4.0, 4.1), test_lengths=lengths)])
        assert verdict(summary.rows[0], summary).kind == "untested"
    # A table ends where training ended, even if no test length shows it.
    summary = summary_of([run("learned", (None, None), test_lengths=(128, 256))])
    assert last_position(summary.rows[0], summary) == 64


def probed(*gains: float | None) -> tuple[int | None, str]:
    summary = summary_of([run("rope", gains=gains)])
    return reach(summary.rows[0], summary), reach_in_words(summary.rows[0], summary)


def test_reach_is_the_farthest_gap_without_a_miss_before_it() -> None:
    assert probed(0.4, 0.3, 0.06, 0.049) == (128, "128")
    assert probed(0.4, 0.3, 0.2, 0.1) == (256, "256+")
    assert probed(0.4, 0.01, 0.2, 0.1) == (32, "32")
    assert probed(*NO_REACH) == (None, "under 32")
    assert probed(-0.4, 0.3, 0.3, 0.3) == (None, "under 32")


def test_best_first_then_those_that_end_then_those_that_failed() -> None:
    results = [run("none", failure=FAILURE), *runs(), run("rope+window", (4.0, math.inf, 9.0, math.inf))]
    order = [row.name for row in best_first(summary_of(results))]
    assert order == ["rolling", "alibi", "rope", "sinusoidal", "rope+window", "learned", "none"]


def test_ratios_in_words() -> None:
    ratios = (1.34, 1.994, 1.996, 9.94, 9.96, 250.4)
    assert [times(ratio) for ratio in ratios] == ["1.34", "1.99", "2.0", "9.9", "10", "250"]


def test_one_seed_claims_no_interval() -> None:
    text = said(runs(1))
    assert "no interval" in text
    assert "95%" not in text
    assert "paired" not in text
    assert "significance is unknown" in text


def test_the_best_is_compared_with_the_reference_or_with_the_second_best() -> None:
    best = f"3.55 (3.49{DASH}3.60), with rolling; with alibi it is 3.95."
    ratio = f"The ratio of rolling to alibi is 0.90 (0.86{DASH}0.94); it is significant."
    assert f"{best} {ratio}" in said(runs(3), "alibi")
    ratio = f"The ratio of alibi to rolling is 1.11 (1.07{DASH}1.16); it is significant."
    assert f"{best} {ratio}" in said(runs(3), "rolling")
    # A reference without a position at the longest length: the second best, and no ratio.
    text = said(runs(3), "learned")
    assert best in text
    assert "The ratio" not in text


def test_an_interval_that_contains_1_is_not_significant() -> None:
    results = [run("rolling", (4.0, 4.0, 4.0, p), seed=s) for s, p in enumerate((3.9, 4.0, 4.1))]
    results += [run("alibi", (4.0, 4.0, 4.0, p), seed=s) for s, p in enumerate((4.1, 4.0, 3.95))]
    assert "not significant" in said(results)
    assert "not significant" not in said(runs(3), "alibi")


def test_nothing_holds() -> None:
    text = said(runs(1, ("learned", "sinusoidal", "rope")))
    assert "holds with none of the encodings" in text
    assert "5.9 with rope and 7.8 with sinusoidal" in text


def test_those_that_hold_are_named_and_none_is_quoted() -> None:
    text = said([run("rope", FLAT), run("none", FLAT)])
    assert "holds with rope and “none”" in text
    assert "1.00 with rope and 1.00 with “none”" in text


def test_the_worst_length_is_named_where_it_is_not_the_longest() -> None:
    text = said([run("rope", (4.0, 6.0, 5.0, 4.5))])
    assert "With rope, the perplexity is highest at 128 tokens: 1.50 times that at 64." in text


def test_failed_runs_are_reported_with_their_reason() -> None:
    assert f"1 of 1 with “none” (seed 0: {FAILURE})." in said([*runs(1), run("none", failure=FAILURE)])
    text = said([*runs(3), run("rope", failure=FAILURE, seed=3)])
    assert f"1 of 4 with rope (seed 3: {FAILURE})." in text
    assert "5.9 with rope" in text


def test_everything_failed() -> None:
    text = said([run(name, failure=FAILURE) for name in TYPICAL])
    assert text.count(FAILURE) == len(TYPICAL)
    for claim in ("holds", "lowest", "probe"):
        assert claim not in text


def test_only_a_table_that_ends() -> None:
    text = said(runs(1, ("learned",)))
    assert "learned (64 tokens)" in text
    assert "lowest" not in text
    assert "probe" not in text


def test_lengths_from_which_nothing_follows() -> None:
    for lengths in ((32, 64), (128, 256)):
        assert "No ratio shows" in said([run("rope", (4.2, 4.0), test_lengths=lengths)])
        notes = " ".join(PAGE.notes(summary_of([run("rope", (4.2, 4.0), test_lengths=lengths)])))
        assert "holds: past" not in notes
    text = said(
        [run("rope", (4.2, 4.0), test_lengths=(128, 256)), run("learned", (None, None), test_lengths=(128, 256))]
    )
    assert "learned (64 tokens)" in text


def test_reach_of_those_that_hold_and_otherwise_of_those_that_get_worse() -> None:
    far, near = run("rope", FLAT, gains=(0.4, 0.3, 0.1, 0.0)), run("alibi", FLAT, gains=(0.4, 0.0, 0.0, 0.0))
    text = said([far, near, run("rolling")])
    for found in ("128 tokens for rope", "32 tokens for alibi", "under 32 tokens for rolling"):
        assert found in text
    worse = run("sinusoidal", gains=(0.4, 0.4, 0.4, 0.4))
    assert "256+ tokens for sinusoidal" not in said([near, worse])
    assert "256+ tokens for sinusoidal" in said([worse])
