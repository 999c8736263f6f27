"""Taking turns, medians with their intervals, exponents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from posembed.lab.cost.turns import FEWEST_ROUNDS, fit_exponent, ratio, spread, take_turns


@pytest.mark.parametrize("n", range(1, 60))
def test_the_interval_is_the_narrowest_that_holds_the_median_with_95_percent(n: int) -> None:
    value = spread([float(i) for i in range(n)])
    if value.low is None or value.high is None:
        assert 1 - 2 * binom.pmf(0, n, 0.5) < 0.95
        return
    cut = int(value.low)
    assert value.high == n - 1 - cut
    assert 1 - 2 * binom.cdf(cut, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(cut + 1, n, 0.5) < 0.95


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_the_order_of_values_does_not_matter(values: list[float]) -> None:
    there, back = spread(values), spread(values[::-1])
    assert (there.median, there.low, there.high) == (back.median, back.low, back.high)
    assert min(values) <= there.median <= max(values)


def test_ratios_are_taken_round_by_round() -> None:
    slow, fast = spread([2.0, 20.0, 6.0]), spread([1.0, 10.0, 3.0])
    assert ratio(slow, fast).values == (2.0, 2.0, 2.0)


def test_everybody_has_the_same_number_of_turns_and_nobody_always_the_same_place() -> None:
    calls: list[str] = []
    shares: list[float] = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = take_turns(steps, seconds=0.0, on_round=shares.append)
    assert calls[:3] == ["a", "b", "c"]  # a first call of each, not timed
    assert calls[3:9] == ["a", "b", "c", "c", "b", "a"]
    assert {len(value.values) for value in times.values()} == {FEWEST_ROUNDS}
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.floats(-1, 3), st.floats(1e-6, 1e6), st.integers(3, 8))
def test_the_exponent_of_a_power_is_found(power: float, factor: float, points: int) -> None:
    sizes = [512 * 2.0**i for i in range(points)]
    found = fit_exponent(sizes, [factor * size**power for size in sizes])
    assert found is not None
    assert math.isclose(found, power, abs_tol=1e-9)


def test_no_exponent_of_few_points_or_of_nothing() -> None:
    assert fit_exponent([1, 2], [1, 2]) is None
    assert fit_exponent([1, 2, 3], [1, 0, 1]) is None
