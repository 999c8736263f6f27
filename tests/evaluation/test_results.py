"""Values over texts: SciPy's and a bootstrap's intervals, and the verdicts on differences."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from evaluated_models import by_text, row_of
from posembed.errors import DataError
from posembed.evaluation.counts import Counts
from posembed.evaluation.measures import MEASUREMENTS
from posembed.evaluation.results import Evaluation, ResultsFile, Row
from posembed.evaluation.runnable import Kind
from posembed.measure.frame import Run, Value
from tolerance import assert_close

RANKS = {"beginning": [1, 1, 4, 1], "middle": [1, 2, 4, 1], "end": [2, 1, 1, 1]}


def measured(kind: Kind, counts: Counts) -> Row:
    """A row with these counts at 64."""
    values = tuple(
        Value(measure.metric.name, total, 64, item, weight)
        for measure in MEASUREMENTS[kind].measures
        for item, (total, weight) in enumerate(measure.sums(counts))
    )
    return Row("a", "", None, (Run("a", 0, values),))


def row(name: str, values: list[float], *, measure: str = "recall at 1", baseline: str = "") -> Row:
    return row_of(name, {measure: {64: values}}, baseline=baseline)


def test_the_passages_of_a_text_count_together() -> None:
    found = measured("sentences", RANKS)
    assert_close(by_text(found, "recall at 1", 64), (2 / 3, 2 / 3, 1 / 3, 1))
    assert_close(by_text(found, "mean reciprocal rank", 64), (2.5 / 3, 2.5 / 3, 0.5, 1))
    assert by_text(found, "recall at 1, passages from the end", 64) == (0, 1, 1, 1)


def test_figures_of_texts_with_other_counts_are_those_of_all_tokens() -> None:
    counted = {"loss": [10.0, 30.0, 8.0], "correct": [3, 1, 2], "masked": [5, 10, 3]}
    found = measured("masked", counted)
    accuracy, perplexity = (found.estimate(name, 64) for name in ("masked-token accuracy", "pseudo-perplexity"))
    assert accuracy is not None
    assert perplexity is not None
    assert_close(accuracy.value, 6 / 18)
    assert_close(perplexity.value, math.exp(48 / 18))


def test_the_interval_of_a_ratio_is_that_of_a_bootstrap_over_texts() -> None:
    draw = np.random.default_rng(0)
    hidden = draw.integers(20, 120, 80)
    found = draw.binomial(hidden, draw.beta(4, 6, 80))
    ours = measured("masked", {"loss": [1.0] * 80, "correct": found.tolist(), "masked": hidden.tolist()})
    estimate = ours.estimate("masked-token accuracy", 64)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    texts = draw.integers(80, size=(9999, 80))
    low, high = np.quantile(found[texts].sum(1) / hidden[texts].sum(1), [0.025, 0.975])
    assert estimate.low == pytest.approx(low, abs=0.08 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.08 * (high - low))


def test_what_is_not_finite_has_no_figure() -> None:
    found = measured("masked", {"loss": [1.0, None], "correct": [1, 1], "masked": [2, 2]})
    assert found.estimate("pseudo-perplexity", 64) is None
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


def test_a_line_that_a_kill_cut_off_is_written_again(tmp_path: Path) -> None:
    """At any byte. Anything else without a newline at the end of the file stays."""
    path, counts = tmp_path / "results.jsonl", {"number": [1, None], "total": [0.5, 2.0]}
    kept = ResultsFile(path)
    for key in ("a", "b"):
        kept.add(key, counts, checkpoint="é")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        kept = ResultsFile(path)
        assert list(kept) == ["a", "b"][: 1 + (size == len(whole) - 1)], size
        kept.add("b", counts, checkpoint="é")
        assert ResultsFile(path) == {"a": counts, "b": counts}
        assert path.read_bytes().startswith(whole[:size])
        one, other = ResultsFile(path), ResultsFile(path)  # of two processes
        one.add("c", counts)
        other.add("d", counts)
        assert list(ResultsFile(path)) == ["a", "b", "c", "d"]
    for other in ("half a li", '{"other"', "[", "[" * 100_000):
        path.write_bytes(whole[:first] + other.encode())
        with pytest.raises(DataError, match="line 2 is not a result"):
            ResultsFile(path)
