from __future__ import annotations

import dataclasses
import math

import pytest
from posembed.report.lengths.words import best_first, last_position, reach, reach_in_words, times, verdict

from made_up_runs import NO_REACH, run, runs
from posembed.lab.questions.lengths import LengthSummary, summarise_lengths
from posembed.report.words import called, interval, listed, model_size, number, runs_of_each
from posembed.statistics import Estimate

FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"


def told(*perplexities: float | None) -> tuple[str, str]:
    summary = summarise_lengths([run("rope", perplexities)])
    found = verdict(summary.rows[0], summary)
    return found.kind, found.text


def test_verdicts_follow_the_worst_ratio_past_the_training_length() -> None:
    assert told(4.0, 3.9, 3.8, 3.7) == ("holds", "holds")
    assert told(4.0, 4.0, 4.07, 4.079) == ("holds", "holds")
    assert told(4.0, 4.0, 4.0, 4.09) == ("worse", "2% worse")
    assert told(4.0, 4.4, 4.0, 3.9) == ("worse", "10% worse at 128")
    assert told(4.0, 5.0, 6.0, 9.2) == ("worse", "2.3 times worse")
    assert told(4.0, 5.0, 600.0, 4800.0) == ("worse", "1,200 times worse")
    assert told(4.0, None, None, None) == ("ends", "ends at 64")
    assert told(4.0, 4.0, None, None) == ("ends", "ends at 128")


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_what_is_not_a_number_never_holds_nor_reaches(at: int, broken: float) -> None:
    perplexities = [4.0, 4.0, 4.0, 4.0]
    perplexities[at] = broken
    kind, text = told(*perplexities)
    assert (kind, text.split()[0]) == ("worse", "∞")
    assert probed(broken if math.isnan(broken) else -broken, 0.4, 0.4, 0.4) == (None, "under 32")


def test_verdict_of_what_failed() -> None:
    results = [run("rope", failure=FAILURE), run("rope", failure="out of words", seed=1)]
    summary = summarise_lengths(results)
    assert verdict(summary.rows[0], summary).text == "failed at step 90"
    summary = summarise_lengths(results[1:])
    assert verdict(summary.rows[0], summary).text == "failed"
    # One run that went well is enough to tell.
    summary = summarise_lengths([*results, run("rope", seed=2)])
    assert verdict(summary.rows[0], summary).text == "5.9 times worse"


def test_nothing_is_claimed_where_nothing_was_compared() -> None:
    for lengths in ((128, 256), (32, 64)):
        summary = summarise_lengths([run("rope", (4.0, 4.1), test_lengths=lengths)])
        assert verdict(summary.rows[0], summary).kind == "untested"
    # A table ends where training ended, also where no test length tells so.
    summary = summarise_lengths([run("learned", (None, None), test_lengths=(128, 256))])
    assert last_position(summary.rows[0], summary) == 64


def probed(*gains: float | None) -> tuple[int | None, str]:
    summary = summarise_lengths([run("rope", gains=gains)])
    return reach(summary.rows[0], summary), reach_in_words(summary.rows[0], summary)


def test_reach_is_the_farthest_gap_without_a_miss_before_it() -> None:
    assert probed(0.4, 0.3, 0.06, 0.049) == (128, "128")
    assert probed(0.4, 0.3, 0.2, 0.1) == (256, "256+")
    assert probed(0.4, 0.01, 0.2, 0.1) == (32, "32")
    assert probed(*NO_REACH) == (None, "under 32")
    assert probed(-0.4, 0.3, 0.3, 0.3) == (None, "under 32")


def test_best_first_then_who_ends_then_who_failed() -> None:
    results = [run("none", failure=FAILURE), *runs(), run("rope+window", (4.0, math.inf, 9.0, math.inf))]
    summary = summarise_lengths(results)
    assert [row.encoding for row in best_first(summary)] == [
        "rolling",
        "alibi",
        "rope",
        "sinusoidal",
        "rope+window",
        "learned",
        "none",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9449, "0.94"),
        (99.99, "99.99"),
        (99.999, "100.0"),
        (132.44, "132.4"),
        (21_900.4, "21,900"),
        (2.1e7, "2e7"),
        (1.5e5, "2e5"),
        (1e12, "1e12"),
        (math.inf, "∞"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_times_and_lists_and_names() -> None:
    assert [times(ratio) for ratio in (1.34, 1.994, 1.996, 9.94, 9.96, 250.4)] == [
        "1.34",
        "1.99",
        "2.0",
        "9.9",
        "10",
        "250",
    ]
    assert [listed(list(letters)) for letters in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert [called("rope"), called("none"), called("none+window")] == ["rope", "“none”", "“none+window”"]


def test_intervals() -> None:
    assert interval(Estimate(3.5, 3.4, 3.6, (3.5, 3.5))) == "3.40\N{EN DASH}3.60"
    assert interval(Estimate(0.1, -0.1, 0.3, (0.1, 0.1))) == "-0.10 to 0.30"
    assert interval(Estimate(3.5, None, None, (3.5,))) == interval(None) == ""


def test_runs_are_counted_as_they_are() -> None:
    def counted(*results: object) -> LengthSummary:
        return summarise_lengths(list(results))  # type: ignore[arg-type]

    assert runs_of_each(counted(*runs(1)).rows) == "one run of each"
    assert runs_of_each(counted(*runs(3)).rows) == "3 runs of each"
    assert runs_of_each(counted(*runs(2), run("none", (4.0,) * 4)).rows) == "1 to 2 runs of each"


def test_one_layer_is_not_layers() -> None:
    spec = run("rope", (4.0,) * 4).spec
    assert model_size(spec) == f"{spec.layers} layers, width {spec.width}, {spec.heads} heads"
    assert model_size(dataclasses.replace(spec, layers=1, heads=1)) == f"1 layer, width {spec.width}, 1 head"
