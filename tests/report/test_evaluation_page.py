"""The pages of evaluations and fine-tunings. What they say is in golden/; here, that it follows from the values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_evaluations import HITS, MISSES, evaluation, row, tuned
from posembed.evaluation.measures import METRICS
from posembed.evaluation.results import Evaluation
from posembed.plots.by_length import lines_by_x
from posembed.report.evaluation import answer, legend, paragraphs, render, tables
from posembed.report.page import write_page
from posembed.report.terminal import as_text


def test_a_notebook_shows_a_line_per_row() -> None:
    lines = repr(evaluation()).splitlines()
    assert lines[0] == f"recall at 1 of {len(HITS)} texts, by length"
    found = evaluation().rows[1].estimate("recall at 1", 128)
    assert found is not None
    assert found.low is not None
    assert found.high == 1.0  # what no score exceeds
    shown = f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
    assert [line.split("  ")[1] for line in lines[1:]] == [row.name for row in evaluation().rows]
    assert lines[2] == f"  tile  64: {shown}, 128: {shown}"
    assert lines[1].endswith("128: none")


def test_long_names_on_a_terminal_leave_the_values_whole() -> None:
    of = evaluation()
    rows = tuple(row("/models/" * 12 + each.checkpoint, HITS, MISSES, "recall at 1", each.baseline) for each in of.rows)
    long = replace(of, rows=rows)
    lines = as_text(tables(long), paragraphs(long), width=100).splitlines()
    shown = [line for line in lines if line.startswith("/models/") and " 0.125 " in f"{line} "]
    assert len(shown) == len(rows)
    assert max(map(len, shown)) <= 100


def test_a_line_ends_where_its_checkpoint_does() -> None:
    found = evaluation().summary()
    ends = {line.name: line.end for line in lines_by_x(found, found.headline, found.names, None)}
    assert ends == {**dict.fromkeys(found.names), "old": 64}


def test_a_single_row_is_compared_with_nothing() -> None:
    of = replace(evaluation(), rows=evaluation().rows[1:2])
    (table,) = tables(of)
    assert [cell.text for cell in table.head] == ["64", "128"]
    assert "Reference" not in legend(of)


def test_one_text_has_no_interval() -> None:
    rows = (row("a", [0.5], [0.5], "perplexity"), row("b", [0.4], [0.6], "perplexity"))
    single = Evaluation("causal", ("perplexity",), (64, 128), 1, rows, ())
    assert legend(single).startswith("With one text")
    assert "95%" not in " ".join(answer(single))
    assert "<svg" in render(single)


def test_the_page_is_written_and_shows_names_and_notes_as_text(tmp_path: Path) -> None:
    page = write_page(tmp_path / "page.html", render(evaluation())).read_text(encoding="utf-8")
    assert "&lt;b&gt;a note" in page
    assert page == render(evaluation())


def test_of_many_baselines_the_figure_by_length_has_the_best_and_the_reference() -> None:
    few = [row("old", HITS, None, "NDCG@10"), row("new", HITS, [0.5] * 8, "NDCG@10")]
    values = {"late": HITS, "worst": [0.0] * 8, "mean of all": [0.25, 0.5] * 4, "chunks": MISSES}
    ways = [row("new", HITS, found, "NDCG@10", name) for name, found in values.items()]
    of = Evaluation("sentences", ("NDCG@10",), (64, 128), len(HITS), (*few, *ways), (), unit="query")
    found = of.summary()
    assert [row.name for row in found.drawn] == ["old", "new", "new, late", "new, chunks"]
    assert (found.end("old"), found.end("new")) == (64, None)
    assert render(of).count("<svg") == 2
    assert "paired by query" in legend(of)


def test_seeds_count_only_where_they_vary() -> None:
    found = tuned().evaluation.summary()
    original = found.versus(found.headline, "out-at-64, chunked at 64", 128)
    assert original is not None
    assert original.over_seeds is not None
    assert original.verdict == "better"
    for few in (1, 2):
        summary = tuned(few).evaluation.summary()
        versus = summary.versus(summary.headline, "out", 128)
        assert versus is not None
        assert versus.over_seeds is None


cells = st.one_of(st.none(), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6))


@settings(max_examples=25)
@given(
    st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=7), st.sampled_from(["recall at 1", "perplexity"])
)
def test_each_sentence_agrees_with_the_values(drawn: list[tuple[list[float] | None, bool]], measure: str) -> None:
    """Every number and every verdict of the answer, with rows of which some are equal and some have no value."""
    drawn.sort(key=lambda each: each[1])  # checkpoints come before baselines
    rows = tuple(
        row(f"row{at}", HITS[:6], found, measure, "chunked" if is_baseline else "")
        for at, (found, is_baseline) in enumerate(drawn)
    )
    of = Evaluation("sentences", (measure,), (64, 128), 6, rows, ())
    by_name, metric, said = {each.name: each for each in rows}, METRICS[measure], " ".join(answer(of))
    known = {each.name: found for each in rows if (found := each.estimate(measure, 128)) is not None}
    shown = dict(re.findall(r"([\d.]+) with “?(row\d+(?:, chunked)?)", said.partition("significant")[0]))
    assert {name: value for value, name in shown.items()}.items() <= {
        name: metric.write(found.value) for name, found in known.items()
    }.items()
    for name, found in known.items():
        assert f"{metric.write(found.value)} with" in said, name
        versus = by_name[name].versus(of.reference, measure, 128)
        if name != of.reference.name and versus is not None:
            assert f"{metric.write_comparison(versus.value)}" in said
            sentence = next(each for each in re.split(r"(?<=[a-z”])\. ", said) if re.search(rf"{name}”? \(", each))
            words = {"equal": r"equals? ", "unknown": "cannot be", "not significant": "not significantly"}
            assert re.search(words.get(versus.verdict, f"significantly {versus.verdict}"), sentence)
