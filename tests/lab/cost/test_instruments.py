"""Taking turns, ratios, exponents."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.lab.cost.instruments import (
    FEWEST_ROUNDS,
    LONG_ENOUGH,
    LONGEST_TO_TIME,
    STEPS_TO_TIME,
    fit_exponent,
    peak_bytes,
    ratio,
    take_turns,
    time_batch,
)
from posembed.layers.lookup import LARGE
from posembed.layers.rotary import rotate
from posembed.statistics import estimate_median
from together import together
from tolerance import assert_close


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


@settings(max_examples=30)
@given(st.floats(-1, 3), st.floats(1e-6, 1e6), st.integers(3, 8))
def test_the_exponent_of_a_power_is_found(power: float, factor: float, points: int) -> None:
    sizes = [512 * 2.0**i for i in range(points)]
    found = fit_exponent(sizes, [factor * size**power for size in sizes])
    assert found is not None
    scale = 30 * math.log(2) + abs(math.log(factor)) + abs(power) * 20  # of the logarithms that are fitted
    assert_close(found, power, scale=scale)


def test_no_exponent_of_few_points_or_of_nothing() -> None:
    assert fit_exponent([1, 2], [1, 2]) is None
    assert fit_exponent([1, 2, 3], [1, 0, 1]) is None


@together("batch", [1, 2, 4, 5, 32, 100])
@together("per_row", [1e-6, 3e-3, 0.2, 0.6, 30.0])
def test_the_time_of_a_batch_is_estimated_from_as_few_rows_as_needed(batch: int, per_row: float) -> None:
    """The first call takes 100 times as long; a call now and then is disturbed."""
    calls: list[tuple[int, int, float]] = []

    def timed(step: int, rows: int) -> float:
        seconds = per_row * rows * (100 if not calls else 1)
        calls.append((step, rows, seconds))
        return seconds * (20 if step == 2 else 1)

    assert_close(time_batch(timed, batch), per_row * batch)
    rows = [each for _, each, _ in calls]
    assert rows == sorted(rows)
    assert rows[-1] <= batch
    assert rows[-1] == batch or per_row * rows[-1] >= LONG_ENOUGH
    # At most one more step than fits into the time, unless a single row takes longer.
    assert sum(seconds for *_, seconds in calls[1:]) < 4 * LONGEST_TO_TIME or set(rows) == {1}
    assert len(calls) <= STEPS_TO_TIME + 5


# The peak of memory, of steps whose peak is known.


X = torch.randn(8, 32)


def test_what_is_freed_does_not_count() -> None:
    def step() -> torch.Tensor:
        first = X + 1
        del first
        second = X * 2
        return second + 1

    assert peak_bytes(step) == 2 * X.nbytes


def test_views_and_what_was_there_before_cost_nothing() -> None:
    def step() -> torch.Tensor:
        X.add_(0)
        return X.view(-1)[:7].expand(3, 7)

    assert peak_bytes(step) == 0


def test_the_backward_pass_is_seen() -> None:
    weight, other = (torch.randn(8, 32, requires_grad=True) for _ in range(2))

    def forward() -> torch.Tensor:
        return (weight * other).sum()

    scalar = 4
    assert peak_bytes(forward) == X.nbytes + scalar
    both = peak_bytes(lambda: torch.autograd.grad(forward(), (weight, other)))
    assert both == 2 * X.nbytes + 2 * scalar


def test_two_countings_do_not_mix() -> None:
    assert [peak_bytes(lambda: X + 1) for _ in range(3)] == [X.nbytes] * 3


def test_large_pages_are_seen() -> None:
    q = torch.zeros(1, 2, LARGE // 128, 64)
    cos, sin = torch.ones(2, LARGE // 128, 32)
    assert peak_bytes(lambda: rotate(q, cos, sin)) >= q.nbytes
