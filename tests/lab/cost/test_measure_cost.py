"""A measurement of cost: checked, whole, and kept as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.cost.measure import checked, encoding_of, measure_cost
from posembed.lab.cost.results import METRICS, PLAIN, CostResult, CostSettings, CostSummary, load, measured_once
from posembed.nn.encodings import names_for

TINY: dict[str, Any] = {"batch": 1, "length": 16, "width": 32, "heads": 4, "layers": 2, "longest": 1024, "seconds": 0}


@pytest.fixture(scope="module")
def result() -> CostResult:
    return measure_cost(CostSettings(encodings=("learned", "rolling", "rope+window", "alibi", "none"), **TINY))


def test_all_encodings_without_a_word() -> None:
    assert checked(CostSettings(**TINY)).encodings == names_for("decoder")


def test_parameters_windows_and_shares(result: CostResult) -> None:
    plain, *runs = result.frame.runs
    assert [run.name for run in runs] == list(result.settings.encodings)
    by_name = {run.name: run.value for run in runs}
    assert by_name["learned"]("parameters") == 16 * 32
    assert by_name["learned"]("longest tried") == 1024
    share = "share of the position and token parameters"
    assert by_name["learned"](share) == 16 / (16 + result.settings.vocabulary)
    window = by_name["rolling"]("window")
    assert window is not None
    assert by_name["rolling"]("parameters") == window * 32
    assert by_name["rope+window"]("window") == window
    assert by_name["alibi"]("parameters") == by_name["none"]("parameters") == 0
    assert plain.name == PLAIN


def test_shares_are_of_the_same_rounds(result: CostResult) -> None:
    plain, *runs = result.frame.runs
    for which in ("forward", "with backward"):
        layer = [each.value for each in plain.found[f"time of the layer, {which}", None]]
        for run in runs:
            alone, attention, share, overhead = (
                [each.value for each in run.found[f"{metric}, {which}", None]]
                for metric in ("time alone", "time of the layer", "share of attention", "overhead")
            )
            assert len(layer) == len(alone) >= 7
            assert share == [a / b for a, b in zip(alone, layer, strict=True)]
            assert overhead == [a / b - 1 for a, b in zip(attention, layer, strict=True)]


def test_the_summary_has_every_metric(result: CostResult) -> None:
    found = CostSummary(result)
    measured = {metric for run in result.frame.runs for metric, _ in run.found}
    assert measured == {name for name in METRICS if not name.startswith("exponent")}  # which one length does not have
    assert found.writing == ["learned", "rolling", "rope+window", "alibi"]


def test_it_is_kept_as_it_was(result: CostResult, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="create it with: posembed compare cost --out"):
        load(tmp_path)
    measured_once(tmp_path / "new", result.settings, lambda: result)
    assert load(tmp_path / "new") == result


def test_progress_goes_from_start_to_end() -> None:
    seen: list[int] = []
    measure_cost(CostSettings(encodings=("alibi",), **TINY), lambda what, done, total: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 100


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"width": 33}, "width 33 is not divisible by 4 heads; try a width of 32"),
        ({"batch": 0}, "batch: expected a whole number of at least 1; got 0"),
        ({"length": 1}, "length: expected a whole number of at least 2"),
        ({"longest": 500}, "longest: expected a whole number of at least 512; got 500"),
        ({"seconds": -1}, "seconds: expected a number of at least 0"),
        ({"device": "abacus"}, "no device 'abacus'"),
        ({"width": 20}, "RoPE rotates pairs"),
    ],
)
def test_bad_sizes_are_refused_before_anything_is_measured(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        checked(CostSettings(encodings=("rope",), **(TINY | changed)))


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ArgumentError, match="unknown encoding 'roope'"):
        checked(CostSettings(encodings=("roope",), **TINY))
    with pytest.raises(ArgumentError, match="encodings: expected a list of names"):
        checked(CostSettings(encodings=(), **TINY))


def test_a_window_may_be_wider_than_the_default() -> None:
    settings = checked(CostSettings(encodings=("rolling",), length=64, width=32, heads=4, layers=2, window=48))
    assert encoding_of(settings, "rolling").window == 48
