"""Figures do not depend on what is around them: rcParams, devices, earlier figures, errors; and they can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.drawings import ALIKE, OF_TABLES, all_axes, titles
from posembed import plots
from posembed.plots.source import rows_of
from together import together
from tolerance import assert_close

TABLE = torch.randn(20, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHTS = torch.full((1, 2, 8), 1 / 8)
EVERY = {
    **OF_TABLES,
    "lengths": lambda table, **how: plots.lengths({"a": {64: 3.0, 128: 4.0}, "b": {64: 3.5, 128: None}}, **how),
    "attention_by_distance": lambda table, **how: plots.attention_by_distance(WEIGHTS, **how),
}


@pytest.fixture
def device() -> Iterator[None]:
    """Another default device: on meta, as on a GPU, tensors do not mix with those of the CPU."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@together(
    "name, setting",
    list(product(EVERY, ["figure.constrained_layout.use", "figure.autolayout"])),
    usual=lambda name, setting: name not in ALIKE and "auto" not in setting,
)
def test_no_device_and_no_layout_matters_and_a_figure_can_be_pickled(name: str, setting: str, device: None) -> None:
    with matplotlib.rc_context({setting: True}):
        drawn = EVERY[name](TABLE)
        before = [axes.get_position().bounds for axes in drawn.figure.axes]
        drawn.figure.draw_without_rendering()
        assert before == [axes.get_position().bounds for axes in drawn.figure.axes]
    again = pickle.loads(pickle.dumps(drawn.figure))
    assert titles(again.axes[0]) == titles(drawn)


@together("name", EVERY)
def test_an_error_leaves_no_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = plt.figure()

    def stop(*args: Any, **how: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Axes, "set_title", stop)
    with pytest.raises(MemoryError):
        EVERY[name](TABLE)
    assert plt.get_fignums() == [mine.number]


@cache
def seen_alone(name: str) -> list[Any]:
    return seen(EVERY[name](TABLE, ax=Figure().add_subplot()))


def seen(axes: Axes) -> list[Any]:
    """What is on axes and on their panels."""
    counts = [(len(one.lines), len(one.images), len(one.patches)) for one in all_axes(axes)]
    words = [[one.get_title(loc="left"), *(text.get_text() for text in one.texts)] for one in all_axes(axes)]
    return [counts, words, [(one.axison, one.get_xlim(), one.get_ylim()) for one in all_axes(axes)]]


FIRST = ["compare", "before_after", "during_training", "directions", "idea", "similarity"]
NEXT = ["norms", "heatmap", "similarity", "idea", "compare", "lengths"]


@together(
    "first, name",
    list(product(FIRST, NEXT)),
    usual=lambda first, name: (FIRST.index(first) + NEXT.index(name)) % 3 == 0,
)
def test_the_next_figure_on_the_same_axes_replaces_panels(first: str, name: str) -> None:
    used = OF_TABLES[first](TABLE, ax=Figure().add_subplot())
    assert seen(EVERY[name](TABLE, ax=used)) == seen_alone(name)


@together(
    "name, scale",
    list(product(OF_TABLES, [1e300, 1e-310])),
    usual=lambda name, scale: name not in ALIKE and (list(OF_TABLES).index(name) % 2 == 0) == (scale > 1),
)
def test_a_table_of_any_scale_is_drawn(name: str, scale: float) -> None:
    OF_TABLES[name](TABLE * scale).figure.canvas.draw()


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_the_scale_changes_no_cosine_and_no_share(scale: float) -> None:
    here, there = rows_of(TABLE), rows_of(TABLE * scale)
    assert_close(there.norms / scale, here.norms)
    assert here.spectrum is not None
    assert there.spectrum is not None
    assert_close(there.spectrum.variance_shares, here.spectrum.variance_shares)
    for draw in (plots.neighbours, plots.similarity_by_distance, plots.similarity):
        one, other = (draw(rows, ax=Figure().add_subplot()) for rows in (here, there))
        for a, b in zip(one.lines, other.lines, strict=True):
            assert_close(a.get_ydata(), b.get_ydata())
        for c, d in zip(one.images, other.images, strict=True):
            assert_close(c.get_array(), d.get_array())


def test_a_sparse_table_is_the_table() -> None:
    table = TABLE.where(TABLE > 0, 0)
    assert torch.equal(rows_of(table.to_sparse()).values, table)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_masked_values_are_not_drawn(dtype: str) -> None:
    hidden = np.zeros((20, 8), dtype=bool)
    hidden[3, 1] = hidden[7] = True
    values = np.where(hidden, 6e4, TABLE.numpy()).astype(dtype)
    rows = rows_of(np.ma.array(values, mask=hidden))
    assert (~rows.finite).nonzero()[:, 0].tolist() == [3, 7]
    assert "NaN or infinity in rows 3, 7" in titles(plots.heatmap(rows, ax=Figure().add_subplot()))
    assert rows.values[rows.values.isfinite()].max() < 100
