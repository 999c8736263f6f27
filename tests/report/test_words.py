from __future__ import annotations

import math

from made_up_runs import run, runs
from posembed.lab.questions import QUESTIONS
from posembed.measure.metrics import Metric
from posembed.report.words import by_outcome, called, certainty, duration, interval, listed, measured, number, percent
from posembed.statistics import Estimate, estimate_median
from posembed.words import MINUS, in_bytes, milliseconds, part
from together import together


@together(
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


def test_shares_and_points() -> None:
    assert percent(0.9744) == "97.4"
    minus, points = "\N{MINUS SIGN}", Metric("accuracy", kind="share").write_comparison
    assert [points(share) for share in (0.002, -0.0312, 0.0, -0.0001)] == ["+0.2", f"{minus}3.1", "0.0", "0.0"]


def test_lists_and_names() -> None:
    assert [listed(list(letters)) for letters in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert [called("rope"), called("none"), called("none+window")] == ["rope", "“none”", "“none+window”"]


def test_intervals() -> None:
    assert interval(Estimate(3.5, 3.4, 3.6, (3.5, 3.5))) == "3.40\N{EN DASH}3.60"
    assert interval(Estimate(0.1, -0.1, 0.3, (0.1, 0.1))) == "\N{MINUS SIGN}0.10 to 0.30"
    assert interval(Estimate(3.5, None, None, (3.5,))) == interval(None) == ""
    assert measured(Estimate(3.5, 3.4, 3.6)) == "3.50 (3.40\N{EN DASH}3.60)"
    assert measured(Estimate(3.5)) == "3.50"


def test_runs_are_counted_as_they_are() -> None:
    def counted(*results: object) -> str:
        return certainty(QUESTIONS["lengths"].summarise(list(results)).rows, "encoding")

    assert counted(*runs(1)).startswith("There is one run per encoding, so there are no intervals")
    assert counted(*runs(3)).startswith("There are 3 runs per encoding.")
    assert counted(*runs(2), run("none", (4.0,) * 4)).startswith("There are 1 to 2 runs per encoding.")
    uneven = "Means over different seeds cannot be ranked"
    assert uneven in counted(*runs(2), run("none", (4.0,) * 4))
    assert uneven not in counted(*runs(3))


def test_sentences_by_outcome() -> None:
    found = [("unknown", "a"), ("better", "b"), ("worse", "c"), ("", "without a value"), ("better", "d")]
    assert by_outcome("x", found) == [
        "b and d are significantly better than x.",
        "c is significantly worse than x.",
        "a cannot be called better or worse than x, because not every interval is known.",
    ]
    assert by_outcome("x", []) == []


def test_shares_times_and_sizes() -> None:
    shares = {
        0.0065: ".65%",
        0.026: "2.6%",
        0.123: "12%",
        -0.12: f"{MINUS}12%",
        0.0: "0%",
        0.00999: "1.0%",
        17: "1,700%",
    }
    assert {value: part(value) for value in shares} == shares
    assert interval(estimate_median([-0.01, *[0.01] * 5]), part) == f"{MINUS}1.0% to 1.0%"
    assert [milliseconds(s) for s in (1e-5, 0.0123, 0.123)] == ["0.010", "12.30", "123"]
    assert [in_bytes(n) for n in (12, 1536, 3 * 2**20, 5 * 2**30)] == ["12 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]


@together(("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (5400, "1.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
