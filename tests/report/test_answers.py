"""The answer, the tables and the figures of any question say what its numbers say."""

from __future__ import annotations

import json
import re

import pytest

import made_up_amounts
import made_up_classes
from asked import summarise
from made_up import MADE
from posembed.lab.found import Found
from posembed.report import answers
from posembed.report.questions import page_of
from posembed.report.words import called

RUNS = {name: runs for name, runs in MADE.items() if name != "by-task"}  # whose page starts with similarities


@pytest.fixture(
    scope="module", params=[(name, seeds) for name in RUNS for seeds in (1, 3)], ids=lambda pair: f"{pair[0]}-{pair[1]}"
)
def found(request: pytest.FixtureRequest) -> Found:
    name, seeds = request.param
    summary: Found = summarise(RUNS[name](seeds))
    return summary


def test_the_best_is_the_first_named_and_the_best_of_the_table(found: Found) -> None:
    metric, x = found.headline, found.x
    known = {row.name: mean.value for row in found.rows if (mean := found.mean(metric, row.name, x)) is not None}
    best = (max if metric.better == "high" else min)(known.values())
    first, *_ = found.best_first(metric, x)
    assert known[first] == best
    table = answers.main_table(found)
    assert table.rows[0].name == first
    said = re.search(r" is (\S+) (?:\(\S+\) )?with (\S+?),? ", answers.values(found, metric, x))
    assert said is not None
    assert (said[1].rstrip("%"), said[2].rstrip(",")) == (metric.write(best), called(first))


def test_sentences_and_tables_have_the_same_verdicts(found: Found) -> None:
    metric, x = found.headline, found.x
    sentences = answers.verdicts(found, metric, x)
    if found.reference is None:
        assert sentences == []
        return
    table = answers.main_table(found)
    heads = [cell.text for cell in table.head]
    told = {row.name: row.cells[heads.index("significant?")].text for row in table.rows}
    words = {"better": "better than", "worse": "worse than", "not significant": "not significantly different from"}
    words["unknown"] = "called better or worse than"
    for name, verdict in told.items():
        versus = found.versus(metric, name, x)
        assert verdict == (versus.verdict if versus is not None else "")
        if versus is not None and (sentences or versus.width):  # silent only where no interval is known
            (sentence,) = [
                each for each in sentences if f"{called(name)} ({metric.write_comparison(versus.value)}" in each
            ]
            assert f"{words[verdict]} {called(found.references[name])}" in sentence


def test_every_value_is_on_the_page(found: Found) -> None:
    page = page_of(found.question)
    text = " ".join(
        f"{cell.text} {cell.note}"
        for table in [*page.main_tables(found), *page.tables(found)]
        for row in table.rows
        for cell in row.cells
    )
    for metric in found.metrics:
        for x in found.xs(metric):
            for row in found.rows:
                mean = found.mean(metric, row.name, x)
                assert mean is None or metric.write(mean.value) in text, (metric.name, x, row.name)


def test_a_summary_is_plain_json(found: Found) -> None:
    plain = json.loads(json.dumps(found.to_dict()))
    assert [row["name"] for row in plain["rows"]] == list(found.names)
    assert {each["metric"] for each in plain["estimates"]} == {metric.name for metric in found.metrics}


def test_shares_stay_within_their_bounds_in_json_and_charts(found: Found) -> None:
    shares = {metric.name for metric in found.metrics if metric.kind == "share"}
    for each in found.to_dict()["estimates"]:
        ends = [each["mean"] and each["mean"][end] for end in ("low", "high")]
        gaps = [kind and kind[end] for kind in (each["versus"], each["over_items"]) for end in ("low", "high")]
        assert each["metric"] not in shares or all(end is None or 0 <= end <= 1 for end in ends)
        assert each["metric"] not in shares or all(end is None or -1 <= end <= 1 for end in gaps)


def test_the_smallest_difference_that_is_significant_is_never_called_too_small() -> None:
    for runs in (made_up_classes.text_runs, made_up_classes.image_runs, made_up_classes.tag_runs):
        found = summarise(runs(3))
        said = " ".join(answers.verdicts(found, found.headline, found.x))
        if least := re.search(r"Differences below about (\S+) points", said):
            known = found.all_versus(found.headline, found.x).values()
            significant = [100 * abs(each.value) for each in known if each.verdict in ("better", "worse")]
            assert float(least[1]) <= min(significant, default=100.0) + 0.05


def test_frames_say_what_is_a_logarithm(found: Found) -> None:
    frame = found.to_pandas()
    frame["x"] = frame["x"].astype(float).fillna(-1)
    sums = frame.groupby(["run", "seed", "metric", "x"])[["value", "weight"]].sum()
    for metric in found.metrics:
        name = f"log {metric.name}" if metric.kind == "log" else metric.name
        for run in found.frame.runs:
            for x in found.xs(metric):
                value = run.value(metric.name, x)
                if value is not None:
                    own = sums.loc[run.name, run.seed, name, -1 if x is None else x]
                    assert abs(own.value / own.weight - value) < 1e-3 * max(1, abs(value))


def test_an_amount_that_was_not_run_is_not_called_a_position() -> None:
    runs = made_up_amounts.data_runs(1)
    largest = runs[-1].spec.amount
    found = summarise([each for each in runs if (each.spec.encoding, each.spec.amount) != ("rope", largest)])
    last = found.xs(found.headline)[-1]
    assert found.mean(found.headline, "rope", last) is None
    assert answers.mean_of(found)(found.headline, "rope", last).text == "not measured"


def test_a_verdict_that_changes_along_the_axis_is_told() -> None:
    found = summarise(made_up_amounts.data_runs(3))
    (sentence,) = answers.along(found, found.headline)
    assert "rope is significantly worse at 8,192 and better at 551,680 and 8,826,887 tokens" in sentence
    assert "sinusoidal is significantly better at 8,192 and worse at" in sentence
