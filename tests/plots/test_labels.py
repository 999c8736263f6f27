from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from posembed.plots.ticks import spread
from tolerance import assert_close

places = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@settings(max_examples=60)
@given(places)
def test_names_keep_their_order_and_distance_and_stay_inside(wanted: list[float]) -> None:
    found = spread(wanted, gap=0.1, low=0.0, high=1.0)
    order = np.argsort(wanted, kind="stable")
    assert np.all(np.diff(np.array(found)[order]) >= 0.1 - 1e-9)
    assert min(found) >= 0
    assert max(found) <= 1 + 1e-9


@settings(max_examples=60)
@given(places)
def test_names_are_as_near_as_can_be(wanted: list[float]) -> None:
    """Places a gap apart are increasing ones once each gap is taken off: least squares is isotonic regression."""
    gaps = 0.1 * np.arange(len(wanted))
    nearest = isotonic_regression(np.sort(wanted) - gaps) + gaps
    found = spread(wanted, gap=0.1, low=-10, high=10)
    assert_close(np.sort(found), nearest)


def test_names_that_fit_stay_where_they_are() -> None:
    assert spread([0.5, 0.1, 0.9], gap=0.2, low=0, high=1) == [0.5, 0.1, 0.9]
