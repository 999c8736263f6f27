"""Every figure draws what can be drawn of any table, says the rest in its title, and cuts off no text."""

from __future__ import annotations

import math
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image
from torch import Tensor

import posembed
from fresh_process import run_python
from plots.drawings import ALIKE, OF_ONE, OF_TABLES, title, titles
from posembed import plots
from posembed.errors import ArgumentError
from posembed.plots.charts import ended_at
from posembed.plots.heat import thinned
from posembed.plots.source import rows_of
from posembed.plots.tables import by_distance
from posembed.tables.fill import sinusoidal_table
from posembed.tables.spectrum import table_spectrum
from together import together
from tolerance import assert_close

EVERY = {**OF_TABLES, "lengths": lambda table, **how: plots.lengths(LENGTHS, **how)}
PUBLIC = plots.__all__
LINES = "one; two\nthree"
LENGTHS: dict[str, dict[int, float | None]] = {
    "rope": {64: 3.7, 128: 4.4, 256: 9.9, 512: 21.9},
    "alibi": {64: 4.1, 128: 4.0, 256: 4.0, 512: 3.9},
    "learned": {64: 4.0, 128: None, 256: None, 512: None},
}


def table(n: int = 20, d: int = 8) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0)).cumsum(dim=0)


def with_values(value: float, *rows: int) -> Tensor:
    broken = table()
    for row in rows:
        broken[row, 3] = value
    return broken


TABLES: dict[str, tuple[Tensor, str]] = {
    "one row": (table(1), ""),
    "two rows": (table(2), ""),
    "one dimension": (table(20, 1), ""),
    "zeros": (torch.zeros(20, 8), ""),
    "equal rows": (torch.ones(20, 8), ""),
    "no rows": (torch.zeros(0, 8), "an empty table, 0 x 8"),
    "no dimensions": (torch.zeros(8, 0), "an empty table, 8 x 0"),
    "a NaN": (with_values(math.nan, 5), "NaN or infinity in row 5"),
    "infinity": (with_values(-math.inf, 0, 7, 19), "NaN or infinity in rows 0, 7, 19"),
    "every other row": (with_values(math.nan, *range(0, 20, 2)), "NaN or infinity in 10 of 20 rows"),
    "nothing finite": (torch.full((20, 8), math.nan), "NaN or infinity in 20 of 20 rows"),
    "huge": (table().double() * 1e30, ""),
    "tiny": (table().double() * 1e-30, ""),
    "more rows than pixels": (table(1100, 20), ""),
}


def is_usual(name: str, kind: str) -> bool:
    """Every figure of one table that shows nothing, and one in nine of the others: they are drawn by common code."""
    place = list(OF_TABLES).index(name) + list(TABLES).index(kind)
    return (name in OF_ONE and kind in ("no rows", "nothing finite")) or place % 9 == 0


@together("name, kind", list(product(OF_TABLES, TABLES)), usual=is_usual)
def test_any_table_is_drawn_and_the_rest_is_said(name: str, kind: str) -> None:
    rows, said = TABLES[kind]
    axes = OF_TABLES[name](rows)
    assert said in titles(axes)
    axes.figure.canvas.draw()


@together("name", ["spectrum", "singular values", "fourier", "directions"])
@together("kind", ["one row", "zeros", "equal rows", "no rows", "nothing finite"])
def test_rows_that_do_not_vary_have_no_directions(name: str, kind: str) -> None:
    assert "its rows do not vary" in title(OF_ONE[name](TABLES[kind][0], title="mine"))


@pytest.mark.parametrize("n", [64, 2048, 5000])
def test_a_table_of_noise_has_no_strong_wave_and_is_drawn(n: int) -> None:
    axes = plots.fourier(torch.randn(n, 8))
    axes.figure.canvas.draw()
    assert axes.get_xlim()[1] > n / 4


def test_shares_of_the_variance_are_those_of_the_first_directions() -> None:
    rows = table(32)
    [curve, *_] = plots.spectrum(rows).get_lines()
    shares = table_spectrum(rows).variance_shares
    assert list(curve.get_xdata()) == list(range(1, len(curve.get_xdata()) + 1))
    assert list(curve.get_ydata()) == pytest.approx([100 * float(shares[:n].sum()) for n in curve.get_xdata()])


def test_a_single_row_has_no_neighbour() -> None:
    assert "a single row has no neighbour" in title(plots.neighbours(table(1)))


def is_usual_size(name: str, n: int) -> bool:
    """Every figure with the most figures at its ticks or with a title of its own, and a third of a single row."""
    return n == (16 if list(EVERY).index(name) % 2 else 20_000) or (n == 1 and list(EVERY).index(name) % 3 == 0)


@together("name, n", list(product(EVERY, [1, 16, 512, 20_000])), usual=is_usual_size)
def test_no_text_is_cut_off_of_a_figure_that_a_notebook_shows(name: str, n: int) -> None:
    axes = EVERY[name](table(n, 8 if n > 1000 else 16), **{"title": LINES} if n == 16 else {})
    figure = axes.figure
    assert n != 16 or axes.get_title(loc="left") == LINES
    assert plt.get_fignums() == [figure.number]
    assert figure.get_facecolor() == (1, 1, 1, 1)
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > -0.01, drawn


@together("name", EVERY, usual=lambda name: name not in ALIKE)
def test_it_draws_on_the_given_axes_and_returns_them(name: str) -> None:
    figure, (_, right) = plt.subplots(1, 2)
    assert EVERY[name](table(), ax=right, title=LINES) is right
    assert right.get_title(loc="left") == LINES
    assert plt.get_fignums() == [figure.number]
    alone = Figure().subplots()
    assert EVERY[name](table(), ax=alone) is alone


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plt.subplots(1, 2)[1], r"got an array of 2. Pass one of them, such as ax\.flat\[0\]"),
        (Figure, "got a Figure"),
        (lambda: plt.figure().add_subplot(projection="polar"), "got polar axes"),
        (lambda: plt.figure().add_subplot(projection="3d"), "got 3d axes"),
        (lambda: "table.png", "got a str"),
    ],
)
def test_other_kinds_of_axes_are_refused(make: Any, said: str) -> None:
    ax, rows = make(), table()
    for draw in EVERY.values():
        with pytest.raises(ArgumentError, match=said):
            draw(rows, ax=ax)


def test_a_title_is_not_a_formula() -> None:
    axes = plots.heatmap(table(), title="$table$ of <b>mine</b> & yours_$")
    axes.figure.canvas.draw()
    assert title(axes) == "$table$ of <b>mine</b> & yours_$"


def test_a_script_without_a_display_saves_a_figure(tmp_path: Path) -> None:
    code = """
import sys
import posembed
assert "matplotlib" not in sys.modules
ax = posembed.plots.heatmap(posembed.tables.sinusoidal_table(16, 8))
ax.figure.savefig("table.png")
"""
    hidden = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    }
    done = run_python("-c", code, cwd=tmp_path, env=hidden)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_colours_are_values() -> None:
    rows = sinusoidal_table(12, 6)
    (image,) = plots.heatmap(rows).findobj(AxesImage)
    assert_close(image.get_array(), rows.T, dtype=torch.float32)
    image, _ = plots.similarity(rows).findobj(AxesImage)
    unit = rows / rows.norm(dim=1, keepdim=True)
    assert_close(image.get_array(), unit @ unit.T, dtype=torch.float32)
    assert image.get_clim() == (-1, 1)
    broken = rows.clone()
    broken[4, 1] = math.nan
    image, _ = plots.similarity(broken).findobj(AxesImage)
    hidden = np.ma.getmaskarray(np.ma.masked_invalid(image.get_array()))
    assert hidden[4].all()
    assert hidden[:, 4].all()
    assert hidden.sum() == 23


@pytest.mark.parametrize("missing", [(), (0,), (3, 4, 9)])
def test_similarity_by_distance_averages_pairs_of_finite_rows(missing: tuple[int, ...]) -> None:
    rows = with_values(math.nan, *missing).double()
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    expected = [cosines.diagonal(-k)[cosines.diagonal(-k).isfinite()].mean().item() for k in range(11)]
    assert_close(by_distance(rows_of(rows)).tolist(), expected, dtype=torch.float32)
    line = plots.similarity_by_distance(rows).get_lines()[0]
    assert_close(list(line.get_ydata()), expected, dtype=torch.float32)


def test_norms_are_norms_and_marked_rows_are_named() -> None:
    rows = table()
    axes = plots.norms(rows, marked=[12, 0])
    assert_close(list(axes.get_lines()[0].get_ydata()), rows.double().norm(dim=1).tolist(), dtype=torch.float32)
    assert [text.get_text() for text in axes.texts] == ["0", "12"]


def test_several_tables_are_named_in_their_colours() -> None:
    tables = {"learned": table(), "random": torch.randn(30, 4)}
    for draw in (plots.norms, plots.neighbours, plots.similarity_by_distance, plots.spectrum):
        axes = draw(tables)
        colours = [line.get_color() for line in axes.get_lines()[:2]]
        assert {text.get_text(): text.get_color() for text in axes.texts} == dict(zip(tables, colours, strict=True))


def test_two_tables_are_compared_in_numbers() -> None:
    a, b = table(), torch.randn(20, 8)
    found = posembed.tables.compare_tables(a, b)
    words = [text.get_text() for text in plots.compare({"a": a, "b": b}).texts]
    assert f"CKA {found.cka:.2f}" in words
    assert f"nothing shared: {found.floor.procrustes_distance:.2f}" in words
    for tables in ({"a": a}, {"a": a, "b": b[:10]}, {"a": a, "b": torch.ones(20, 8)}, {"a": a, "b": b, "c": a}):
        assert not any("CKA" in text.get_text() for text in plots.compare(tables).texts)
    with pytest.raises(ArgumentError, match="expected tables by name"):
        plots.compare(a)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="one table or more by name; got none"):
        plots.compare({})
    with pytest.raises(ArgumentError, match="tables by training step"):
        plots.during_training({})


def test_the_wall_stands_past_the_last_row() -> None:
    for n in (1, 5, 6, 512):
        words = [text.get_text() for text in plots.idea(table(n, 16)).texts]
        assert f"no row for {n}" in words
        assert f"{n - 1}" in words
        assert ("⋮" in words) == (n > 5)
        assert "PositionError" in words
    assert "no row for 5" in [text.get_text() for text in plots.idea().texts]


def test_lengths_of_plain_numbers_and_of_what_is_none() -> None:
    axes = plots.lengths(LENGTHS, trained=64)
    words = [text.get_text() for text in axes.texts]
    assert {"alibi", "rope ↑ 21.90", "learned ✕ 64", "trained"} <= set(words)
    for gap in ({64: 3.0, 128: None, 256: 3.0}, {64: None, 128: 3.0}):
        assert ended_at(gap, 64) is None
    assert axes.get_xscale() == axes.get_yscale() == "log"
    for nothing in (7, None, {"a": 3.0}, {"a": {64: "high"}}, [1.0]):
        with pytest.raises(ArgumentError, match="expected a comparison of lengths, or perplexities"):
            plots.lengths(nothing)
    for empty in ({}, {"a": {}}, {"a": {64: None}}):
        with pytest.raises(ArgumentError, match="at least one perplexity"):
            plots.lengths(empty)


def test_thinning_keeps_every_kth_row() -> None:
    for n, k in ((10, 1), (512, 1), (513, 2), (5000, 10)):
        drawn, step = thinned(torch.arange(n))
        assert (step, len(drawn) <= 512) == (k, True)
        assert drawn[1] == step


@together("name", PUBLIC)
def test_each_function_stands_beside_its_picture_in_the_docs(name: str) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "plots.md").read_text(encoding="utf-8")
    section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert f"plots.{name}(" in section
    assert f"](images/plots/{name}.png)" in section
    with Image.open(docs / "images" / "plots" / f"{name}.png") as picture:
        assert picture.width >= 600
