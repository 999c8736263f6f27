"""Values over texts: SciPy's and a bootstrap's intervals, and the verdicts on differences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats

from evaluated_models import by_text, row_of
from posembed.evaluation.results import Evaluation, Row
from posembed.measure.frame import Run, Value
from tolerance import assert_close

Weighted = tuple[list["float | None"], list[float]]


def measured(**counts: Weighted) -> Row:
    """A row with these sums and weights of each text at 64, by measure."""
    values = tuple(
        Value(name.replace("_", " ").replace("masked token", "masked-token"), total, 64, item, weight)
        for name, of_texts in counts.items()
        for item, (total, weight) in enumerate(zip(*of_texts, strict=True))
    )
    return Row("a", "", None, (Run("a", 0, values),))


def row(name: str, values: list[float], *, measure: str = "recall at 1", baseline: str = "") -> Row:
    return row_of(name, {measure: {64: values}}, baseline=baseline)


def test_figures_of_texts_with_other_counts_are_those_of_all_tokens() -> None:
    found = measured(masked_token_accuracy=([3, 1, 2], [5, 10, 3]), perplexity=([10.0, 30.0, 8.0], [5, 10, 3]))
    accuracy, perplexity = (found.estimate(name, 64) for name in ("masked-token accuracy", "perplexity"))
    assert accuracy is not None
    assert perplexity is not None
    assert_close(accuracy.value, 6 / 18)
    assert_close(perplexity.value, math.exp(48 / 18))


def test_the_interval_of_a_ratio_is_that_of_a_bootstrap_over_texts() -> None:
    draw = np.random.default_rng(0)
    hidden = draw.integers(20, 120, 80)
    found = draw.binomial(hidden, draw.beta(4, 6, 80))
    ours = measured(masked_token_accuracy=(found.tolist(), hidden.tolist()))
    estimate = ours.estimate("masked-token accuracy", 64)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    texts = draw.integers(80, size=(9999, 80))
    low, high = np.quantile(found[texts].sum(1) / hidden[texts].sum(1), [0.025, 0.975])
    assert estimate.low == pytest.approx(low, abs=0.08 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.08 * (high - low))


def test_what_is_not_finite_has_no_figure() -> None:
    found = measured(perplexity=([1.0, None], [2, 2]), masked_token_accuracy=([1, 1], [2, 2]))
    assert found.estimate("perplexity", 64) is None
    assert found.estimate("masked-token accuracy", 64) is not None


def test_differences_are_paired_by_text() -> None:
    # A difference far below the spread over texts.
    theirs, ours = row("old", [0.1, 0.5, 0.9]), row("new", [0.2, 0.6, 1.01])
    versus = ours.versus(theirs, "recall at 1", 64)
    assert versus is not None
    expected = scipy.stats.ttest_rel([0.2, 0.6, 1.01], [0.1, 0.5, 0.9]).confidence_interval()
    assert versus.over_items is not None
    assert_close((versus.over_items.low, versus.over_items.high), (expected.low, expected.high))
    odd = row("odd", [0.5, 0.1, 0.9])
    pairs = {(ours, theirs): "better", (theirs, ours): "worse", (ours, ours): "equal", (odd, theirs): "not significant"}
    for (one, other), verdict in pairs.items():
        assert one.versus(other, "recall at 1", 64).verdict == verdict  # type: ignore[union-attr]
    values = tuple(Value("recall at 1", 1.0, 64, f"of others {item}") for item in range(3))
    assert ours.versus(Row("others", "", 64, (Run("others", 0, values),)), "recall at 1", 64) is None
    assert ours.versus(theirs, "recall at 1", 128) is None


@pytest.mark.parametrize("counts", [[1] * 12, [1, 4, 2, 2, 7, 1, 3, 1, 1, 2, 1, 1]])
def test_a_document_is_one_item_however_many_texts_it_has(counts: list[int]) -> None:
    """The mean stays, and with equal numbers of texts, the values are plain means."""
    draw = np.random.default_rng(1)
    totals = draw.integers(0, 9, 12) * np.array(counts) / 9
    for owners in ([0] * 3 + [1] * 5 + [4] + [2] * 3, [at // 4 for at in range(12)]):
        values = (Value("recall at 1", *each) for each in zip(totals.tolist(), [64] * 12, owners, counts, strict=True))
        found = Row("a", "", 64, (Run("a", 0, tuple(values)),))
        of_documents = by_text(found, "recall at 1", 64)
        assert of_documents is not None
        assert len(of_documents) == len(set(owners))
        assert_close(np.mean(of_documents), totals.sum() / sum(counts))
        if owners[3] == 0 and counts == [1] * 12:
            assert_close(of_documents, totals.reshape(3, 4).mean(axis=1).tolist())


def test_perplexities_are_compared_by_their_ratio_and_lower_is_better() -> None:
    theirs, ours = (row(name, values, measure="perplexity") for name, values in (("a", [2, 3]), ("b", [1, 2.01])))
    versus = ours.versus(theirs, "perplexity", 64)
    assert versus is not None
    assert_close(versus.value, math.exp(-0.995))
    assert versus.verdict == "better"
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
    figure = next(each for each in printed["estimates"] if each["run"] == "old, truncated" and each["x"] == 64)
    assert_close(figure["mean"]["value"], 2 / 3)
    assert figure["over_items"]["low"] < figure["over_items"]["value"] < 0
