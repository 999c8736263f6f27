"""The presets with the sizes of the tables that guides copy, and with a quarter of every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posembed.comparison import prepare
from posembed.lab.question import PRESETS
from posembed.lab.questions import QUESTIONS

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
    assert found.mean(found.headline, "learned", 64) is None
    assert found.mean(found.headline, "rope", 64).value > 0
