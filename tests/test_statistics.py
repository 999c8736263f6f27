from __future__ import annotations

import math

import pytest
import scipy.stats

from posembed.statistics import estimate, paired_difference, safe_exp, shares


def test_the_interval_is_students() -> None:
    values = [1.2, 0.7, 1.9, 1.1]
    ours = estimate(values)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.mean == pytest.approx(1.225)


def test_one_value_has_no_interval() -> None:
    assert estimate([2.0]).low is None
    assert estimate([2.0]).exp().high is None


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = {0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.5, 0: 0.5, 7: 100.0}
    difference = paired_difference(ours, theirs)
    assert difference is not None
    assert difference.values == (0.5, 0.5)
    assert difference.low == pytest.approx(0.5)
    assert paired_difference(ours, {}) is None


def test_shares_have_the_mean_of_all_and_are_the_texts_own_where_counts_are_equal() -> None:
    assert shares([1.0, 3.0], [4, 4]) == pytest.approx((0.25, 0.75))
    values = shares([1.0, 9.0, 2.0], [2, 30, 3])
    assert math.fsum(values) / 3 == pytest.approx(12 / 35)


def test_an_interval_tells_from_what_it_leaves_out() -> None:
    found = estimate([1.0, 1.2, 1.1])
    assert found.tells_from(0.5)
    assert not found.tells_from(1.0)
    assert not estimate([1.0]).tells_from(0.0)


def test_perplexities_do_not_overflow() -> None:
    assert estimate([1.0, 3.0]).exp().mean == pytest.approx(math.exp(2))
    assert safe_exp(1e4) == math.inf
