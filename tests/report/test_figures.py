from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import posembed.report
from asked import summarise
from made_up_runs import run, runs
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunResult
from posembed.measure.estimates import Comparison
from posembed.measure.metrics import Metric
from posembed.plots.by_length import heights, lines_by_x
from posembed.plots.charts import Line, line_chart
from posembed.plots.style import styles
from posembed.report.comparisons import comparison_figure
from posembed.report.evidence import smoothed, training_figure
from posembed.report.page import Picture
from posembed.report.questions import page_of
from posembed.report.svg import VARIABLES, svg_for_page
from posembed.statistics import Estimate
from tolerance import assert_close

FLAT = (4.0, 4.0, 4.0, 4.0)


def texts(figure: Figure) -> list[str]:
    svg = svg_for_page(figure, name="test", described="a figure")
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def length_figure(*results: RunResult) -> Picture:
    found = summarise(results)
    return next(iter(page_of(found.question).figures(found)))


def length_svg(*results: RunResult) -> str:
    return str(length_figure(*results).svg)


def length_words(*results: RunResult) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", length_svg(*results))


def test_every_encoding_is_named_in_the_figure() -> None:
    words = length_words(*runs(2), run("none", failure="the loss was nan at step 9 of 700"))
    assert {"rolling", "alibi", "trained", "64", "128", "256", "512"} <= set(words)
    assert "learned ✕ 64" in words
    assert any(word.startswith("rope ↑ 2") for word in words)
    assert not any("none" in word for word in words)


def test_a_line_that_is_not_drawn_is_named_so_that_none_is_a_name() -> None:
    figure = length_figure(*runs(2), run("none", failure="the loss was nan at step 9 of 700"))
    assert "training failed: “none”" in figure.caption


@pytest.mark.parametrize("last", [4.0, 40.0, 1e30, math.inf, math.nan])
def test_the_axis_ends_where_those_that_hold_stay_apart(last: float) -> None:
    results = run("rolling", FLAT), run("alibi", (4.2, 4.2, 4.2, 4.2)), run("rope", (4.0, 4.0, 4.0, last))
    found = summarise(results)
    low, high = heights(lines_by_x(found, found.headline, found.names, 64))
    assert 1.3 <= high / low < 5
    figure = length_figure(*results)
    assert f"axis ends at {high:.3g};" in figure.caption
    words = length_words(*results)
    assert any(word.startswith("rope") for word in words)
    assert ("↑" in " ".join(words)) == (last != 4.0)


def test_figures_of_almost_nothing() -> None:
    failed = run("rope", failure="the loss was nan at step 1 of 700")
    assert list(page_of(QUESTIONS["lengths"]).figures(summarise([failed]))) == []
    assert "learned ✕ 64" in length_words(run("learned", (None, None), test_lengths=(128, 256)))
    assert texts(training_figure([failed]))


def test_shares_are_drawn_in_percent_and_sizes_that_would_touch_lose_their_number() -> None:
    sizes = [1, 2, 3, 50, 99, 100]
    line = Line("rope", {size: Estimate(0.5, 0.4, 0.6) for size in sizes})
    figure = line_chart([line], names=["rope"], title="", below="", ticks=sizes, trained=50)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "50", "3"]
    assert set(axes.get_lines()[0].get_ydata()) == {50.0}


def test_text_is_text_whatever_it_holds() -> None:
    svg = length_svg(run("<b>$x^2$&", FLAT))
    assert "&lt;b&gt;$x^2$&amp;" in svg
    assert "<b>" not in svg


def test_the_training_curve_names_each_encoding_once() -> None:
    words = texts(training_figure(runs(3)))
    assert [words.count(name) for name in ("learned", "rolling", "rope")] == [1, 1, 1]


def test_smoothing_keeps_straight_lines_and_length() -> None:
    line = [2.0 - 0.01 * step for step in range(20)]
    assert_close(smoothed(line), line)
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
    for svg in (length_svg(*runs(2)), svg_for_page(training_figure(runs(2)), name="test", described="")):
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        (Metric("accuracy", kind="share", better="high"), ", in percentage points"),
        (Metric("loss", unit="nats"), ", in nats"),
        (Metric("perplexity", kind="log"), ""),
    ],
)
def test_comparisons_are_drawn_in_their_unit(metric: Metric, unit: str) -> None:
    compared = {"rope": Comparison(metric, Estimate(1.25, 1.0, 1.5)), "t5": Comparison(metric, Estimate(0.5))}
    words = " ".join(texts(comparison_figure(compared, ["rope", "t5", "alibi"], "alibi")))
    how = "divided by" if metric.ratio else "minus"
    assert f"{metric.name} {how} that of alibi{unit}" in words
    assert ("worse ← → better" in words) == (metric.better == "high")
    assert all(metric.write_comparison(value) in words for value in (1.25, 0.5))
