from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from posembed.statistics import Estimate, estimate, estimate_median, jackknife, paired_difference, safe_exp, shares
from together import together
from tolerance import assert_close


def test_the_interval_is_students() -> None:
    values = [1.2, 0.7, 1.9, 1.1]
    ours = estimate(values)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert_close((ours.low, ours.high), (theirs.low, theirs.high))
    assert_close(ours.value, 1.225)


def test_one_value_has_no_interval() -> None:
    assert estimate([2.0]).low is None
    assert estimate([2.0]).exp().high is None


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = {0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.5, 0: 0.5, 7: 100.0}
    difference = paired_difference(ours, theirs)
    assert difference is not None
    assert difference.values == (0.5, 0.5)
    assert_close(difference.low, 0.5)
    assert paired_difference(ours, {}) is None


def test_shares_have_the_mean_of_all_and_are_the_texts_own_where_counts_are_equal() -> None:
    assert_close(shares([1.0, 3.0], [4, 4]), (0.25, 0.75))
    values = shares([1.0, 9.0, 2.0], [2, 30, 3])
    assert_close(math.fsum(values) / 3, 12 / 35)


def test_an_interval_lies_on_a_side_of_what_it_excludes() -> None:
    found = estimate([1.0, 1.2, 1.1])
    assert found.side_of(0.5) == "above"
    assert found.side_of(1.0) == "both"
    assert found.side_of(2.0) == "below"


def test_without_an_interval_there_is_no_side() -> None:
    assert estimate([1.0]).side_of(0.0) is None
    assert estimate([1.0]).side_of(0.0) is None
    assert Estimate(math.nan, math.nan, math.nan).side_of(0.0) is None


def test_the_end_of_an_interval_belongs_to_it() -> None:
    assert Estimate(1.0, 0.0, 2.0).side_of(0.0) == Estimate(1.0, 0.0, 2.0).side_of(2.0) == "both"


def test_perplexities_do_not_overflow() -> None:
    assert_close(estimate([1.0, 3.0]).exp().value, math.exp(2))
    assert safe_exp(1e4) == math.inf


@together("n", range(1, 60))
def test_the_interval_is_the_narrowest_that_holds_the_median_with_95_percent(n: int) -> None:
    value = estimate_median([float(i) for i in range(n)])
    if value.low is None or value.high is None:
        assert 1 - 2 * binom.pmf(0, n, 0.5) < 0.95
        return
    cut = int(value.low)
    assert value.high == n - 1 - cut
    assert 1 - 2 * binom.cdf(cut, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(cut + 1, n, 0.5) < 0.95


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_the_order_of_values_does_not_matter(values: list[float]) -> None:
    there, back = estimate_median(values), estimate_median(values[::-1])
    assert (there.value, there.low, there.high) == (back.value, back.low, back.high)
    assert min(values) <= there.value <= max(values)


def test_leaving_out_one_group_gives_students_interval_for_a_mean_and_twice_it_for_pairs() -> None:
    values = {0: 1.2, 1: 0.7, 2: 1.9, 5: 1.1}
    plain = estimate(list(values.values()))

    def of_pairs(groups: Sequence[int]) -> float | None:
        sums = [values[a] + values[b] for a, b in combinations(groups, 2)]
        return math.fsum(sums) / len(sums) if sums else None

    one = jackknife(list(values), lambda groups: math.fsum(values[g] for g in groups) / len(groups))
    two = jackknife(list(values), of_pairs)
    assert one is not None
    assert two is not None
    assert_close((one.value, one.low, one.high), (plain.value, plain.low, plain.high))
    assert_close((two.value, two.low, two.high), (2 * plain.value, 2 * plain.low, 2 * plain.high))  # type: ignore[operator]


def test_leaving_out_one_of_too_few_groups() -> None:
    def two_or_more(groups: Sequence[int]) -> float | None:
        return float(sum(groups)) if len(groups) > 1 else None

    assert jackknife([], two_or_more) is None
    assert jackknife([3], two_or_more) is None
    assert jackknife([3, 4], two_or_more) == Estimate(7.0)
    assert jackknife([3], lambda groups: 1.0 if groups else None) == Estimate(1.0)
