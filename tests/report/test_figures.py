from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from posembed.report.lengths.curve import heights, is_cut, length_figure

import posembed.report
from made_up_runs import run, runs
from posembed.lab.curves import smoothed
from posembed.lab.questions.lengths import LengthSummary, summarise_lengths
from posembed.report.drawing import VARIABLES, styles, svg_for_page
from posembed.report.learned.pictures import norms, table_figure
from posembed.report.training_curve import training_figure

FLAT = (4.0, 4.0, 4.0, 4.0)


def texts(figure: Figure) -> list[str]:
    svg = svg_for_page(figure, name="test", described="a figure")
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def summary(*results: object) -> LengthSummary:
    return summarise_lengths(list(results))  # type: ignore[arg-type]


def test_every_encoding_is_named_in_the_figure() -> None:
    words = texts(length_figure(summary(*runs(2), run("none", failure="the loss was nan at step 9 of 700"))))
    assert {"rolling", "alibi", "training length", "64", "128", "256", "512"} <= set(words)
    assert "✕ learned: no position past 64" in words
    assert any(word.startswith("rope ↑ 2") for word in words)
    assert not any("none" in word for word in words)


@pytest.mark.parametrize("last", [4.0, 40.0, 1e30, math.inf, math.nan])
def test_the_axis_is_cut_so_that_those_that_hold_can_be_told_apart(last: float) -> None:
    of = summary(run("rolling", FLAT), run("alibi", (4.2, 4.2, 4.2, 4.2)), run("rope", (4.0, 4.0, 4.0, last)))
    low, high = heights(of)
    assert 1.3 <= high / low < 5
    assert is_cut(of) == (None if last == 4.0 else high)
    words = texts(length_figure(of))
    assert any(word.startswith("rope") for word in words)
    assert ("↑" in " ".join(words)) == (last != 4.0)


def test_figures_of_what_is_hardly_there() -> None:
    failed = run("rope", failure="the loss was nan at step 1 of 700")
    nothing = summary(failed)
    assert "training length" in texts(length_figure(nothing))
    assert "✕ learned: no position past 64" in texts(
        length_figure(summary(run("learned", (None, None), test_lengths=(128, 256))))
    )
    assert "rope" in texts(length_figure(summary(run("rope", (4.0,), test_lengths=(64,)))))
    assert texts(training_figure([failed]))


def test_text_is_text_whatever_it_holds() -> None:
    svg = svg_for_page(length_figure(summary(run("<b>$x^2$&", FLAT))), name="test", described="")
    assert "&lt;b&gt;$x^2$&amp;" in svg
    assert "<b>" not in svg


def test_the_training_curve_names_each_encoding_once() -> None:
    words = texts(training_figure(runs(3)))
    assert [words.count(name) for name in ("learned", "rolling", "rope")] == [1, 1, 1]


def test_smoothing_keeps_straight_lines_and_length() -> None:
    line = [2.0 - 0.01 * step for step in range(20)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([1.0]) == [1.0]
    assert smoothed([]) == []


def test_an_encoding_under_a_window_keeps_its_colour_and_is_dashed() -> None:
    drawn = styles(["alibi", "rope+window", "rope", *(f"other{n}" for n in range(9))])
    assert drawn["rope"].colour == drawn["rope+window"].colour != drawn["alibi"].colour
    assert drawn["rope+window"].dashed
    assert not drawn["rope"].dashed


def test_every_colour_of_a_figure_is_one_of_the_page_in_light_and_in_dark() -> None:
    css = (Path(posembed.report.__file__).parent / "page.css").read_text(encoding="utf-8")
    light, dark = css.split("prefers-color-scheme: dark")
    for colour, variable in VARIABLES.items():
        assert f"{variable}: {colour};" in light
        assert f"{variable}: #" in dark
    figures = [length_figure(summary(*runs(2))), training_figure(runs(2))]
    for figure in figures:
        svg = svg_for_page(figure, name="test", described="")
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()


def test_norms_against_float64() -> None:
    rows = torch.randn(7, 5)
    rows[3] = 0
    expected = [math.sqrt(sum(x * x for x in row)) for row in rows.double().tolist()]
    assert norms(rows).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", [(64, 96), (16, 5), (1, 4)])
def test_the_picture_of_a_table_has_four_images_and_its_norms(shape: tuple[int, int]) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    svg = svg_for_page(table_figure(rows * 0, rows), name="test", described="")
    assert svg.count("<image") == 4
    assert svg.count("data:image/png;base64,") == 4
    assert {"norms", "at initialisation", "after training"} <= set(re.findall(r">([a-z ]+)</text>", svg))
