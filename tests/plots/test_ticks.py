"""Numbers on a logarithmic axis are round, few enough to be read, and short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from sklearn.isotonic import isotonic_regression

from posembed.plots.ticks import fix_ticks, spread, tick_heights, tick_text
from tolerance import assert_close


@pytest.mark.parametrize(
    ("low", "high"), [(3.0, 4.0), (1.0, 20.0), (0.9, 99.0), (0.02, 400.0), (1e-5, 5.0), (1e-9, 1e6)]
)
def test_however_long_the_axis_is(low: float, high: float) -> None:
    axes = Figure().subplots()
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    tick_heights(axes)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert 2 <= len(names) <= 12
    assert all(len(name) <= 7 for name in names), names
    assert all(low <= height <= high for height in axes.get_yticks())
    shown = [float(name.replace(",", "").replace("\N{MINUS SIGN}", "-")) for name in names]
    assert_close(shown, list(axes.get_yticks()))


def test_small_numbers_have_an_exponent_and_zero_has_none() -> None:
    assert [tick_text(place) for place in (0.0, 0.001, 0.0005, 12_500.0)] == [
        "0",
        "0.001",
        "5e\N{MINUS SIGN}4",
        "12,500",
    ]


def test_whole_numbers_keep_their_digits() -> None:
    axes = Figure().subplots()
    fix_ticks(axes.xaxis, [8192, 524_288, 8_826_887], exact=True)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8,192", "524,288", "8,826,887"]


# The names of lines


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
