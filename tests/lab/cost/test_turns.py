"""Taking turns, ratios, exponents."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.lab.cost.instruments import FEWEST_ROUNDS, fit_exponent, ratio, take_turns
from posembed.statistics import estimate_median


def test_ratios_are_taken_round_by_round() -> None:
    slow, fast = estimate_median([2.0, 20.0, 6.0]), estimate_median([1.0, 10.0, 3.0])
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
