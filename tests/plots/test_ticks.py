"""Numbers on a logarithmic axis are round, few enough to be read, and short."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from posembed.plots.ticks import fix_ticks, tick_heights
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


def test_whole_numbers_keep_their_digits() -> None:
    axes = Figure().subplots()
    fix_ticks(axes.xaxis, [8192, 524_288, 8_826_887], exact=True)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8,192", "524,288", "8,826,887"]
