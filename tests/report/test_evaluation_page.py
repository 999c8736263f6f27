"""An evaluation in words, and its page."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.evaluation.measures import MEASURES
from posembed.evaluation.results import Evaluation, Row
from posembed.plots.charts import dots_figure
from posembed.report.evaluation import (
    answer,
    differences,
    legend,
    length_figure,
    paragraphs,
    ratio,
    render,
    span,
    tables,
    value,
    write_evaluation_page,
)
from posembed.report.terminal import as_text
from posembed.statistics import estimate

HITS = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
MISSES = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def row(name: str, short: list[float], long: list[float] | None, *, measure: str, baseline: str = "") -> Row:
    values = {measure: {64: tuple(short), 128: None if long is None else tuple(long)}}
    return Row(name, baseline, 64 if long is None else 128, "", values)


def evaluation(measure: str = "recall at 1") -> Evaluation:
    rows = (
        row("old", HITS, None, measure=measure),
        row("tile", HITS, HITS, measure=measure),
        row("mean", HITS, MISSES, measure=measure),
        row("old", HITS, MISSES, measure=measure, baseline="truncated at 64"),
        row("old", HITS, HITS, measure=measure, baseline="chunked at 64"),
    )
    return Evaluation("sentences", (measure,), (64, 128), len(HITS), rows, ("<b>a note</b>",))


def test_a_notebook_shows_a_line_per_row() -> None:
    lines = repr(evaluation()).splitlines()
    assert lines[0] == f"recall at 1 of {len(HITS)} texts, by length"
    found = evaluation().rows[1].estimate("recall at 1", 128)
    assert found is not None
    assert found.low is not None
    shown = f"{found.value:.3f} ±{found.value - found.low:.3f}"
    assert [line.split("  ")[1] for line in lines[1:]] == [row.name for row in evaluation().rows]
    assert lines[2] == f"  tile  64: {shown}, 128: {shown}"
    assert lines[1].endswith("128: none")


def test_the_answer_names_the_best_and_what_is_significant() -> None:
    text = " ".join(answer(evaluation()))
    assert text.startswith(
        "At 128 tokens, tile has the best recall at 1: 0.750 (8 texts; 95% interval 0.363\N{EN DASH}1.000)."
    )
    assert re.search("tile [(].*[)] equals “old, chunked at 64” with 0.750 on every text[.]", text)
    assert "mean is significantly worse than tile." in text
    lower = " ".join(answer(evaluation("perplexity")))
    assert "mean has the best perplexity" in lower
    assert "is significantly better than “old, chunked at 64”" in lower
    assert " times; paired " in lower


def test_tables_compare_at_each_length_and_name_the_difference_at_the_longest() -> None:
    (table,) = tables(evaluation())
    assert [cell.text for cell in table.head] == ["64", "128", "difference at 128"]
    cells = {row.name: [f"{cell.text} {cell.note}".strip() for cell in row.cells[1:]] for row in table.rows}
    assert cells == {
        "old": ["too long", ""],
        "tile": ["0.750 ±.387", "0.000 equal"],
        "mean": ["0.125 ±.296 -", "\N{MINUS SIGN}0.625 ±.433 worse"],
        "old, truncated at 64": ["0.125 ±.296 -", "\N{MINUS SIGN}0.625 ±.433 worse"],
        "old, chunked at 64": ["0.750 ±.387", ""],
    }
    assert [row.cells[2].kind for row in table.rows] == ["", "muted", "bad", "bad", ""]
    assert "Reference: old, chunked at 64." in legend(evaluation())
    (ratios,) = tables(evaluation("perplexity"))
    assert ratios.head[-1].text == "ratio at 128"
    assert ratios.rows[2].cells[2].text == "0.54"
    assert ratios.rows[2].cells[2].kind == "good"


def test_long_names_on_a_terminal_leave_the_values_whole() -> None:
    of = evaluation()
    long = replace(of, rows=tuple(replace(row, checkpoint="/models/" * 12 + row.checkpoint) for row in of.rows))
    lines = [line.split() for line in as_text(tables(long), paragraphs(long), width=72).splitlines()]
    assert [line[-5:] for line in lines if line[-1:] == ["worse"]] == [["±.387", "±.296", "-", "±.433", "worse"]] * 2
    assert sum(line[-2:] == ["0.125", "\N{MINUS SIGN}0.625"] for line in lines) == 2


def test_a_single_row_is_compared_with_nothing() -> None:
    of = replace(evaluation(), rows=evaluation().rows[1:2])
    (table,) = tables(of)
    assert [cell.text for cell in table.head] == ["64", "128"]
    assert "Reference" not in legend(of)


def test_one_text_has_no_interval() -> None:
    rows = (row("a", [0.5], [0.5], measure="perplexity"), row("b", [0.4], [0.6], measure="perplexity"))
    single = Evaluation("causal", ("perplexity",), (64, 128), 1, rows, ())
    assert legend(single).startswith("With one text")
    assert "95%" not in " ".join(answer(single))
    assert "<svg" in render(single)


def test_shares_end_at_one() -> None:
    assert span(MEASURES["recall at 1"], estimate([1.0, 1.0, 1.0, 0.0])).endswith("\N{EN DASH}1.000")


@pytest.mark.parametrize("measure", ["recall at 1", "perplexity"])
def test_the_page(tmp_path: Path, measure: str) -> None:
    of = evaluation(measure)
    page = write_evaluation_page(of, tmp_path / "page.html").read_text(encoding="utf-8")
    places = [page.index(words) for words in ("At 128 tokens,", "<svg", "The numbers", "How it was measured")]
    assert places == sorted(places)
    assert "&lt;b&gt;a note" in page
    assert page == render(of)


@pytest.mark.parametrize(
    ("measure", "how", "below", "marked"),
    [("recall at 1", "minus", "difference", 0.0), ("perplexity", "divided by", "ratio", 1.0)],
)
def test_the_dotted_line_is_where_rows_do_not_differ(
    measure: str, how: str, below: str, marked: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def spy(*given: Any, **options: Any) -> Any:
        drawn.append(figure := dots_figure(*given, **options))
        return figure

    monkeypatch.setattr("posembed.report.evaluation.dots_figure", spy)
    found = differences(evaluation(measure))
    assert f"{measure} at 128 tokens, {how} that of “old, chunked at 64”" in str(found.svg)
    axes = drawn[0].axes[0]
    assert axes.get_xlabel() == below
    assert any(list(line.get_xdata()) == [marked, marked] and line.get_linestyle() != "-" for line in axes.lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "1.00"), (1.0131, "1.013"), (0.9871, "0.987"), (1.12, "1.12"), (0.3, "0.30"), (2e7, "2e7")],
)
def test_ratios_near_one_have_a_third_digit(value: float, shown: str) -> None:
    assert ratio(value) == shown


def test_every_row_has_a_line_and_its_name() -> None:
    of = evaluation()
    figure = length_figure(of, "recall at 1")
    (axes,) = figure.axes
    texts = {text.get_text() for text in axes.texts}
    assert {row.name for row in of.rows[1:]} | {"✕ old: takes at most 64"} == texts


def test_with_many_baselines_one_figure_has_the_best_and_another_has_every_difference() -> None:
    few = [row("old", HITS, None, measure="NDCG@10"), row("new", HITS, [0.5] * 8, measure="NDCG@10")]
    values = {"late": HITS, "worst": [0.0] * 8, "mean of all": [0.25, 0.5] * 4, "chunks": MISSES}
    ways = [row("new", HITS, found, measure="NDCG@10", baseline=name) for name, found in values.items()]
    of = Evaluation("sentences", ("NDCG@10",), (64, 128), len(HITS), (*few, *ways), (), unit="query")
    (axes,) = length_figure(of, "NDCG@10").axes
    drawn = " ".join(text.get_text() for text in axes.texts)
    assert "new, late" in drawn  # the best
    assert "new, chunks" in drawn  # the reference
    assert "worst" not in drawn
    page = render(of)
    assert page.count("<svg") == 2
    assert "on 8 queries" in page
    said = " ".join(answer(of))
    assert said.startswith("At 128 tokens, “new, late” has the best NDCG@10: 0.750 (8 queries;")
    assert "The best of the checkpoints without a baseline, new has 0.500." in said
    assert "“new, late” is significantly better than “new, chunks”." in said
    assert "paired by query" in legend(of)
    assert render(replace(of, rows=of.rows[-3:])).count("<svg") == 1


def test_without_a_checkpoint_at_the_longest_length_the_best_baseline_is_named() -> None:
    rows = (
        row("old", HITS, None, measure="recall at 1"),
        row("old", HITS, HITS, measure="recall at 1", baseline="truncated at 64"),
        row("old", HITS, MISSES, measure="recall at 1", baseline="chunked at 64"),
    )
    of = Evaluation("sentences", ("recall at 1",), (64, 128), len(HITS), rows, ())
    first, *others = answer(of)
    assert first.startswith("At 128 tokens, “old, truncated at 64” has the best recall at 1: 0.750 ")
    assert others[0] == "No checkpoint has a value at this length without a baseline."


cells = st.one_of(st.none(), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=7), st.sampled_from(["recall at 1", "perplexity"])
)
def test_each_sentence_agrees_with_the_table(drawn: list[tuple[list[float] | None, bool]], measure: str) -> None:
    """Every "best", every number and every verdict of the answer is read and compared with the rows, of which some are
    equal and some have no value."""
    drawn.sort(key=lambda each: each[1])  # checkpoints come before baselines
    rows = tuple(
        row(f"row{at}", HITS[:6], found, measure=measure, baseline="chunked" if is_baseline else "")
        for at, (found, is_baseline) in enumerate(drawn)
    )
    of = Evaluation("sentences", (measure,), (64, 128), 6, rows, ())
    known = {each.name: found for each in rows if (found := each.estimate(measure, 128)) is not None}
    sign, sentences = 1 if measure == "perplexity" else -1, answer(of)
    if not known:
        assert sentences == ["No row has a value at 128 tokens."]
        return
    shown = {name: value(MEASURES[measure], each.value) for name, each in known.items()}
    best = min(known.values(), key=lambda each: sign * each.value)
    claimed, number = re.match(r"At 128 tokens, “?(.*?)”? has the best .*?: ([\d.]+) ", sentences[0]).groups()  # type: ignore[union-attr]
    assert known[claimed].value == best.value
    assert number == shown[claimed]
    by_name = {each.name: each for each in rows}
    for sentence in sentences[1:]:
        names = re.findall(r"row\d+(?:, chunked)?", sentence)
        for name, number in re.findall(r"(row\d+(?:, chunked)?)”? (?:with|has) ([\d.]+\d)", sentence):
            assert number == shown[name], sentence
        if "best of the checkpoints" in sentence:
            own = [known[each.name].value for each in of.checkpoints if each.name in known]
            assert known[names[0]].value == min(own, key=lambda each: sign * each)
        outcome = re.search("(not significantly different|significantly (better|worse)|equals?)", sentence)
        if outcome:
            end = sentence.index(outcome[0])
            ours, theirs = (re.findall(r"row\d+(?:, chunked)?", part) for part in (sentence[:end], sentence[end:]))
            for one, other in itertools.product(ours, theirs):
                verdict = MEASURES[measure].verdict(by_name[one].versus(by_name[other], measure, 128))
                assert verdict == (outcome[2] or {"n": "not significant"}.get(outcome[0][0], "equal")), sentence
