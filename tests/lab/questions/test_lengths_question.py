from __future__ import annotations

import dataclasses
import math

import pytest

from asked import runs_of, shared, summarise
from posembed.errors import ArgumentError
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import default_window
from posembed.lab.tasks.text_specs import BITS, REPEAT_GAIN, SAME_TOKENS, LengthSpec, Measurements
from tolerance import assert_close


def result(spec: LengthSpec, encoding: str, seed: int, losses: dict[int, float | None]) -> RunResult:
    spec = dataclasses.replace(spec, encoding=encoding, seed=seed)
    chunked = dict.fromkeys(losses, 1.0)
    measured = Measurements(losses, losses, chunked, chunked, {8: 0.25, 16: None}, dict.fromkeys(losses, 2.0))
    return RunResult(spec, 100, 10, None, ((12, 1.0),), measured, None, 1.0, 1.0)


def test_runs_of_a_seed_stand_together_and_doubles_are_one(spec: LengthSpec) -> None:
    runs = runs_of(spec, ["rope", "alibi+window", "rope"], 2)
    assert [(r.encoding, r.seed) for r in runs] == [
        ("rope", 0),
        ("alibi+window", 0),
        ("rope", 1),
        ("alibi+window", 1),
    ]


def test_the_summary_is_arithmetic_over_seeds(spec: LengthSpec) -> None:
    results = [
        result(spec, "alibi", 0, {8: 2.0, 16: 1.5, 40: 1.4}),
        result(spec, "rope", 0, {8: 2.0, 16: 1.3, 40: 2.4}),
        result(spec, "alibi", 1, {8: 2.2, 16: 1.7, 40: 1.6}),
        result(spec, "rope", 1, {8: 2.0, 16: 1.7, 40: 2.8}),
        result(spec, "learned", 1, {8: 2.0, 16: 1.7, 40: None}),
    ]
    found = summarise(results, reference="alibi")
    assert [row.name for row in found.rows] == ["alibi", "rope", "learned"]
    assert found.row("rope").seeds == (0, 1)
    assert_close(found.mean(SAME_TOKENS, "rope", 40).value, math.exp(2.6))
    assert_close(found.mean(BITS, "rope", 16).value, 1.5 / math.log(2) / 2)
    # Paired by seed, against its own loss at the training length and against the reference at the same length.
    assert found.axis.base == 16
    assert_close(found.against(SAME_TOKENS, "rope", 40, 16).over_seeds.values, [math.exp(1.1), math.exp(1.1)])
    assert_close(found.versus(SAME_TOKENS, "rope", 40).value, math.exp(1.1))
    assert found.versus(SAME_TOKENS, "alibi", 40) is None
    assert found.mean(SAME_TOKENS, "learned", 40) is found.against(SAME_TOKENS, "learned", 40, 16) is None
    alone = found.versus(SAME_TOKENS, "learned", 16).over_seeds
    assert_close(alone.value, 1.0)
    assert alone.low is None
    assert found.xs(REPEAT_GAIN) == (8, 16)
    assert found.mean(REPEAT_GAIN, "learned", 8) is not None
    assert found.mean(REPEAT_GAIN, "learned", 16) is None


def test_the_reference_is_alibi_where_it_was_run_and_otherwise_a_choice(spec: LengthSpec) -> None:
    losses: dict[int, float | None] = {8: 1.0, 16: 1.0, 40: 1.0}
    both = [result(spec, "rope", 0, losses), result(spec, "alibi", 0, losses)]
    assert summarise(both).reference == "alibi"
    assert summarise(both, reference="rope").reference == "rope"
    with pytest.raises(ArgumentError, match=r"the reference 'none' was not run; the finished runs are rope, alibi"):
        summarise(both, reference="none")
    with pytest.raises(ArgumentError, match=r"the reference 'none' is not compared; the names are rope; add it"):
        runs_of(spec, ["rope"], 1, reference="none")
    alone = summarise(both[:1])
    assert alone.reference == "rope"  # without ALiBi, the first
    with pytest.raises(ArgumentError, match="nothing to summarise"):
        summarise([])


def test_windows_by_default_show_no_model_more_than_it_saw() -> None:
    for layers, length in [(3, 64), (3, 128), (12, 1024), (1, 1), (6, 50)]:
        window = default_window(layers, length)
        assert layers * (window - 1) + 1 <= length < layers * (2 * window - 1) + 1


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("a line of text\n" * 40, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("preset", Lengths.presets)
def test_presets_are_whole_and_can_be_overridden(preset: str, text: str) -> None:
    spec = shared("lengths", preset, data=text, layers=None)
    assert spec.ring == spec.window > 1
    assert spec.train_length in spec.test_lengths
    changed = shared("lengths", preset, data=text, layers=2, window=5, test_lengths=(9, 4, 9))
    assert (changed.test_lengths, changed.window, changed.ring) == ((4, 9), 5, 5)
