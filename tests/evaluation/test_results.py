"""Values over texts: SciPy's and a bootstrap's intervals, and the verdicts on differences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats

from posembed.evaluation.counts import Counts
from posembed.evaluation.measures import MEASUREMENTS, MEASURES, ByText
from posembed.evaluation.results import Evaluation, Row
from posembed.evaluation.runnable import Kind
from tolerance import assert_close

RANKS = {"beginning": [1, 1, 4, 1], "middle": [1, 2, 4, 1], "end": [2, 1, 1, 1]}


def measured(kind: Kind, counts: Counts) -> dict[str, ByText]:
    return {measure.name: measure.by_text(counts) for measure in MEASUREMENTS[kind].measures}


def row(name: str, values: list[float], *, measure: str = "recall at 1", baseline: str = "", texts: str = "") -> Row:
    return Row(name, baseline, 64, texts, {measure: {64: tuple(values), 128: None}})


def test_the_passages_of_a_text_count_together() -> None:
    measures = measured("sentences", RANKS)
    assert_close(measures["recall at 1"], (2 / 3, 2 / 3, 1 / 3, 1))
    assert_close(measures["mean reciprocal rank"], (2.5 / 3, 2.5 / 3, 0.5, 1))
    assert measures["recall at 1, passages from the end"] == (0, 1, 1, 1)


def test_figures_of_texts_with_other_counts_are_those_of_all_tokens() -> None:
    counted = {"loss": [10.0, 30.0, 8.0], "correct": [3, 1, 2], "masked": [5, 10, 3]}
    measures = measured("masked", counted)
    found = Row("a", "", None, "", {name: {64: values} for name, values in measures.items()})
    accuracy, perplexity = (found.estimate(name, 64) for name in measures)
    assert accuracy is not None
    assert perplexity is not None
    assert_close(accuracy.value, 6 / 18)
    assert_close(perplexity.value, math.exp(48 / 18))


def test_the_interval_of_a_ratio_is_that_of_a_bootstrap_over_texts() -> None:
    draw = np.random.default_rng(0)
    hidden = draw.integers(20, 120, 80)
    found = draw.binomial(hidden, draw.beta(4, 6, 80))
    values = measured("masked", {"loss": [1.0] * 80, "correct": found.tolist(), "masked": hidden.tolist()})
    ours = Row("a", "", None, "", {"masked-token accuracy": {64: values["masked-token accuracy"]}})
    estimate = ours.estimate("masked-token accuracy", 64)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    texts = draw.integers(80, size=(9999, 80))
    low, high = np.quantile(found[texts].sum(1) / hidden[texts].sum(1), [0.025, 0.975])
    assert estimate.low == pytest.approx(low, abs=0.08 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.08 * (high - low))


def test_what_is_not_finite_has_no_figure() -> None:
    measures = measured("masked", {"loss": [1.0, None], "correct": [1, 1], "masked": [2, 2]})
    assert measures["pseudo-perplexity"] is None
    assert measures["masked-token accuracy"] is not None


def test_differences_are_paired_by_text() -> None:
    # A difference far below the spread over texts.
    theirs, ours = row("old", [0.1, 0.5, 0.9]), row("new", [0.2, 0.6, 1.01])
    versus = ours.versus(theirs, "recall at 1", 64)
    assert versus is not None
    expected = scipy.stats.ttest_rel([0.2, 0.6, 1.01], [0.1, 0.5, 0.9]).confidence_interval()
    assert_close((versus.low, versus.high), (expected.low, expected.high))
    verdict = MEASURES["recall at 1"].verdict
    assert verdict(versus) == "better"
    assert verdict(theirs.versus(ours, "recall at 1", 64)) == "worse"
    assert verdict(ours.versus(ours, "recall at 1", 64)) == "equal"
    assert verdict(row("odd", [0.5, 0.1, 0.9]).versus(theirs, "recall at 1", 64)) == "not significant"
    assert ours.versus(row("others", [1.0, 1.0, 1.0], texts="others"), "recall at 1", 64) is None
    assert ours.versus(theirs, "recall at 1", 128) is None


def test_perplexities_are_compared_by_their_ratio_and_lower_is_better() -> None:
    theirs, ours = (row(name, values, measure="perplexity") for name, values in (("a", [2, 3]), ("b", [1, 2.01])))
    versus = ours.versus(theirs, "perplexity", 64)
    assert versus is not None
    assert_close(versus.value, math.exp(-0.995))
    assert MEASURES["perplexity"].verdict(versus) == "better"
    evaluation = Evaluation("causal", ("perplexity",), (64, 128), 2, (theirs, ours), ())
    assert evaluation.best("perplexity", 64) is ours
    assert evaluation.best("perplexity", 128) is None
    assert evaluation.reference is theirs


def test_the_reference_is_chunking_and_json_holds_plain_numbers() -> None:
    rows = (
        row("new", [1, 1, 1]),
        row("old", [1, 0, 1], baseline="truncated"),
        row("old", [1, 1, 1], baseline="chunked"),
    )
    evaluation = Evaluation("sentences", ("recall at 1",), (64, 128), 3, rows, ("a note",))
    assert evaluation.reference is rows[2]
    printed = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert printed["reference"] == "old, chunked"
    figure = printed["rows"][1]["values"]["recall at 1"]["64"]
    assert_close(figure["value"], 2 / 3)
    assert figure["versus_reference"]["low"] < figure["versus_reference"]["value"] < 0
    assert printed["rows"][1]["values"]["recall at 1"]["128"] is None
