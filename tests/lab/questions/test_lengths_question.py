from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from asked import runs_of, shared, summarise
from posembed.comparison import prepare
from posembed.errors import ArgumentError
from posembed.lab.metrics import Measured, by_x
from posembed.lab.question import PRESETS
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import default_window
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS, WHOLE_WINDOWS, LengthSpec


def result(spec: LengthSpec, encoding: str, seed: int, losses: dict[int, float | None]) -> RunResult:
    spec = dataclasses.replace(spec, encoding=encoding, seed=seed)
    measured = Measured(tuple(by_x({SAME_TOKENS: losses, WHOLE_WINDOWS: losses, REPEAT_GAIN: {8: 0.25, 16: None}})))
    return RunResult(spec, 100, 10, None, ((12, 1.0),), measured, None, 1.0, 1.0)


def test_the_reference_is_alibi_where_it_was_run_and_otherwise_a_choice(spec: LengthSpec) -> None:
    losses: dict[int, float | None] = {8: 1.0, 16: 1.0, 40: 1.0}
    both = [result(spec, "rope", 0, losses), result(spec, "alibi", 0, losses)]
    assert summarise(both).reference == "alibi"
    assert summarise(both, reference="rope").reference == "rope"
    with pytest.raises(ArgumentError, match=r"the reference 'none' is not compared; the names are rope; add it"):
        runs_of(spec, ["rope"], 1, reference="none")
    alone = summarise(both[:1])
    assert alone.reference == "rope"  # without ALiBi, the first


@pytest.mark.parametrize("question", ["lengths", "data-efficiency", "reverse"])
def test_one_model_has_one_name(question: str) -> None:
    canonical = QUESTIONS[question].canonical
    for name in ("rope", "rope+window", "rolling+logn/none"):
        assert canonical(name) == name
    for first, last in (("", ""), ("none/", "/alibi+window")):
        names = {canonical(f"{first}rope+{suffixes}{last}") for suffixes in ("window+logn", "logn+window")}
        assert names == {f"{first}rope+logn+window{last}"}


def test_windows_by_default_show_no_model_more_than_it_saw() -> None:
    for layers, length in [(3, 64), (3, 128), (12, 1024), (1, 1), (6, 50), (3, 22), (12, 181)]:
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
    usual = spec.test_lengths
    for trained in (usual[0], usual[-1] - 1, usual[-1], 3 * usual[-1]):
        given = {"train_length": trained, "test_lengths": None}
        tested = QUESTIONS["lengths"].settings(preset, given)["test_lengths"]
        assert tested == (usual if trained < usual[-1] else (trained, 2 * trained, 4 * trained, 8 * trained))
        assert QUESTIONS["lengths"].settings(preset, given | {"test_lengths": (9,)})["test_lengths"] == (9,)


# The presets with the sizes of the tables that guides copy, and with a quarter of every size.


HAVE = sorted(name for name, presets in PRESETS.items() if "documents" in presets)
SAME = {"data", "pooling", "dropout", "weight_decay", "clip", "learning_rate", "precision", "encodings"}
"""Settings that are not sizes."""


def quarter(value: Any) -> Any:
    if isinstance(value, str):
        kind, number = value.split(":")
        return f"{kind}:{quarter(int(number))}"
    if isinstance(value, tuple):
        return tuple(map(quarter, value))
    assert value % 4 == 0
    return value // 4


@pytest.mark.parametrize("name", HAVE)
def test_a_quarter_of_every_size(name: str) -> None:
    whole, part = (QUESTIONS[name].presets[preset] for preset in ("documents", "documents-quarter"))
    assert whole.keys() == part.keys()
    sizes = whole.keys() - SAME
    assert {"layers", "width", "heads", "batch"} <= sizes
    assert {size: part[size] for size in sizes} == {size: quarter(whole[size]) for size in sizes}
    assert whole.get("data") == part.get("data")


def test_the_table_of_perplexities_can_be_planned_and_run(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line of text that comes again and again\n" * 100, encoding="utf-8")
    tiny = {"layers": 1, "width": 16, "heads": 2, "batch": 2, "steps": 1, "train_length": 8, "test_lengths": (8, 64)}
    tiny |= {"tokenizer": "bytes", "test_tokens": 256, "precision": "no", "data": text, "device": "cpu"}
    encodings = ["learned", "sinusoidal", "rope", "alibi"]
    prepared = prepare("lengths", tiny | {"preset": "documents", "encodings": encodings, "out": tmp_path / "runs"})
    assert [run.parameters > 0 < run.seconds for run in prepared.plan()] == [True] * 4
    assert not (tmp_path / "runs").exists()
    found = prepared.run().summary
    assert list(found.names) == encodings
    assert [(run.kept, run.seconds) for run in prepared.plan()] == [(True, 0)] * 4
    more = tiny | {"preset": "documents", "encodings": ["rope", "none"], "out": tmp_path / "runs", "seeds": 2}
    left = prepare("lengths", more).plan()
    assert [(run.name, run.kept, run.seconds > 0) for run in left] == [
        ("rope, seed 0", True, False),
        ("none, seed 0", False, True),
        ("rope, seed 1", False, True),
        ("none, seed 1", False, True),
    ]
    assert found.mean(found.headline, "learned", 64) is None
    assert found.mean(found.headline, "rope", 64).value > 0
