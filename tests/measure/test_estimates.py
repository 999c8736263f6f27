"""Means, comparisons and verdicts from a frame, compared with NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import t

from posembed.measure.estimates import FEWEST_ALIKE, Estimates
from posembed.measure.frame import COLUMNS, Frame, Run, Value
from posembed.measure.metrics import Metric
from tolerance import assert_close

LOSS, GAIN, RATIO = Metric("m"), Metric("m", better="high", kind="share"), Metric("m", kind="log")
numbers = st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6)


def frame_of(**by_name: list[float | None]) -> Frame:
    return Frame(
        tuple(
            Run(name, seed, (Value("m", value),))
            for name, values in by_name.items()
            for seed, value in enumerate(values)
        )
    )


def interval(values: list[float]) -> tuple[float, float, float]:
    mean = float(np.mean(values))
    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half


@given(numbers, st.randoms(use_true_random=False))
def test_means_and_differences_are_those_of_numpy(ours: list[float], random) -> None:
    theirs = [random.uniform(0.01, 0.99) for _ in ours]
    found = Estimates(frame_of(a=ours, b=theirs), ["a", "b"], "b")
    mean, versus = found.mean(LOSS, "a"), found.versus(LOSS, "a")
    assert mean is not None
    assert versus is not None
    assert_close((mean.value, mean.low, mean.high), interval(ours), depth=4)
    differences = [x - y for x, y in zip(ours, theirs, strict=True)]
    each = versus.over_seeds
    assert_close((each.value, each.low, each.high), interval(differences), depth=4, scale=1.0)
    ratio, log = found.versus(RATIO, "a"), found.mean(RATIO, "a")
    assert ratio is not None
    assert log is not None
    assert ratio.value == pytest.approx(math.exp(interval(differences)[0]))
    assert log.value == pytest.approx(math.exp(interval(ours)[0]))


@given(numbers, st.randoms(use_true_random=False))
def test_a_verdict_turns_around_with_the_reference_and_with_what_is_better(ours: list[float], random) -> None:
    frame = frame_of(a=ours, b=[random.uniform(0.01, 0.99) for _ in ours])
    opposite = {"better": "worse", "worse": "better"}
    for metric in (LOSS, GAIN, RATIO):
        a, b = (
            Estimates(frame, ["a", "b"], "b").versus(metric, "a"),
            Estimates(frame, ["a", "b"], "a").versus(metric, "b"),
        )
        assert a is not None
        assert b is not None
        assert b.verdict == opposite.get(a.verdict, a.verdict)
    low, high = (
        Estimates(frame, ["a", "b"], "b").versus(Metric("m", better=better), "a") for better in ("low", "high")
    )
    assert low is not None
    assert high is not None
    assert high.verdict == opposite.get(low.verdict, low.verdict)


def test_a_change_runs_from_the_base_to_x_and_is_compared_with_the_reference_s() -> None:
    values = {"a": ((1.0, 5.0), (2.0, 7.0)), "b": ((1.0, 2.0), (3.0, 4.0))}
    runs = (
        Run(name, seed, (Value("m", before, 8), Value("m", after, 16)))
        for name, of_seeds in values.items()
        for seed, (before, after) in enumerate(of_seeds)
    )
    found = Estimates(Frame(tuple(runs)), ["a", "b"], "b").change(LOSS, "a", 16, 8)
    assert found is not None
    assert found.value == ((5 - 1) - (2 - 1) + (7 - 2) - (4 - 3)) / 2


def test_what_is_unknown_is_none() -> None:
    found = Estimates(frame_of(a=[1.0], b=[2.0], none=[None]), ["a", "b", "none", "failed"], "b")
    versus = found.versus(LOSS, "a")
    assert versus is not None
    assert (versus.value, versus.verdict) == (-1.0, "unknown")
    for name in ("none", "failed"):
        assert found.mean(LOSS, name) is None
        assert found.versus(LOSS, name) is None
    assert found.versus(LOSS, "b") is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=30),
    st.integers(1, 4),
)
def test_over_items_pairs_by_item(items: list[tuple[int, int, int]], seeds: int) -> None:
    """The estimate of a ratio of sums, with the variance of Cochran 1977, 6.4."""

    def run(name: str, which: int, seed: int) -> Run:
        values = (Value("m", min(item[which], item[2]), item=i, weight=item[2]) for i, item in enumerate(items))
        return Run(name, seed, tuple(values))

    frame = Frame(tuple(run(name, which, seed) for which, name in enumerate("ab") for seed in range(seeds)))
    versus = Estimates(frame, ["a", "b"], "b").versus(GAIN, "a")
    assert versus is not None
    assert versus.over_items is not None
    gained = np.array([min(a, n) - min(b, n) for a, b, n in items], dtype=float)
    counts = np.array([n for _, _, n in items], dtype=float)
    ratio = gained.sum() / counts.sum()
    assert_close(versus.value, ratio, scale=1.0)
    spread = np.std(gained - ratio * counts, ddof=1) / counts.mean() / math.sqrt(len(items))
    assume(spread > 1e-9)
    half = t.ppf(0.975, len(items) - 1) * spread
    assert_close(versus.over_items.low, max(ratio - half, -1.0), depth=4, scale=half)


@given(documents=st.integers(2, 12), seeds=st.integers(2, 8))
def test_few_items_or_seeds_that_agree_are_not_significant(documents: int, seeds: int) -> None:
    def run(name: str, right: int, seed: int) -> Run:
        return Run(name, seed, tuple(Value("m", right, item=i) for i in range(documents)))

    frame = Frame(tuple(run(name, right, seed) for name, right in (("a", 1), ("b", 0)) for seed in range(seeds)))
    versus = Estimates(frame, ["a", "b"], "b").versus(GAIN, "a")
    assert versus is not None
    enough = documents >= FEWEST_ALIKE and seeds >= FEWEST_ALIKE
    assert versus.verdict == ("better" if enough else "unknown")


def test_a_frame_is_tidy() -> None:
    frame = Frame(
        (Run("a", 0, (Value("m", 0.5, 64), Value("m", None, 128))), Run("b", 0, (Value("m", 1.0, 64, 3, 2.0),)))
    )
    pandas = frame.to_pandas()
    assert tuple(pandas.columns) == COLUMNS
    assert pandas["value"].isna().tolist() == [False, True, False]
    assert pandas[pandas.run == "b"].iloc[0].to_dict() == {
        "run": "b", "seed": 0, "item": 3, "metric": "m", "x": 64, "value": 1.0, "weight": 2.0,
    }  # fmt: skip
    assert frame.xs("m") == (64, 128)
