from __future__ import annotations

import dataclasses
import math

import pytest

from made_up_runs import run, runs
from posembed.lab.questions import QUESTIONS
from posembed.report.questions.accuracy import percent, points
from posembed.report.questions.problems import percent as percent_of_problems
from posembed.report.words import called, interval, listed, model_size, number, runs_per
from posembed.statistics import Estimate


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


def test_shares_and_points() -> None:
    assert percent(0.9744) == "97.4"
    minus = "\N{MINUS SIGN}"
    assert [points(share) for share in (0.002, -0.0312, 0.0, -0.0001)] == ["+0.2", f"{minus}3.1", "0.0", "0.0"]
    shares = (0.0, 0.0001, 0.005, 0.47, 0.995, 0.9999, 1.0)
    assert [percent_of_problems(share) for share in shares] == ["0", "<0.1", "0.5", "47", "99.5", ">99.9", "100"]


def test_lists_and_names() -> None:
    assert [listed(list(letters)) for letters in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert [called("rope"), called("none"), called("none+window")] == ["rope", "“none”", "“none+window”"]


def test_intervals() -> None:
    assert interval(Estimate(3.5, 3.4, 3.6, (3.5, 3.5))) == "3.40\N{EN DASH}3.60"
    assert interval(Estimate(0.1, -0.1, 0.3, (0.1, 0.1))) == "-0.10 to 0.30"
    assert interval(Estimate(3.5, None, None, (3.5,))) == interval(None) == ""


def test_runs_are_counted_as_they_are() -> None:
    def counted(*results: object) -> str:
        return runs_per(QUESTIONS["lengths"].summarise(list(results)).rows)

    assert counted(*runs(1)) == "one run per encoding"
    assert counted(*runs(3)) == "3 runs per encoding"
    assert counted(*runs(2), run("none", (4.0,) * 4)) == "1 to 2 runs per encoding"


def test_one_layer_is_not_layers() -> None:
    spec = run("rope", (4.0,) * 4).spec
    assert model_size(spec) == f"{spec.layers} layers, width {spec.width}, {spec.heads} heads"
    assert model_size(dataclasses.replace(spec, layers=1, heads=1)) == f"1 layer, width {spec.width}, 1 head"
