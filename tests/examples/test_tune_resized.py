"""The tuning example, at a size of seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from tune_resized import POSITIONS, byte_tokenizer, tune_and_compare


def test_each_step_changes_what_it_says(tmp_path: Path) -> None:
    evaluation = tune_and_compare(
        tmp_path,
        steps=6,
        tuning_steps=4,
        layers=1,
        width=32,
        tokens_a_step=512,
        texts=4,
        files=12,
        method="tile",
        smoothing=0.1,
    )
    names = [Path(row.checkpoint).name for row in evaluation.rows]
    assert names == ["trained-64", "resized", "table-tuned", "all-tuned", "trained-256", "trained-64"]
    assert evaluation.reference.baseline == "truncated or chunked at 64"
    at_the_end = [row.estimate("perplexity", 256) for row in evaluation.rows]
    assert [estimate is None for estimate in at_the_end] == [True, False, False, False, False, False]

    trained, resized, table, everything = (load_file(tmp_path / name / "model.safetensors") for name in names[:4])
    assert torch.equal(resized[POSITIONS][64:128], trained[POSITIONS])
    assert {key for key in table if not torch.equal(table[key], resized[key])} == {POSITIONS}
    assert len({key for key in everything if not torch.equal(everything[key], resized[key])}) > 5


def test_a_token_is_a_byte() -> None:
    tokenizer = byte_tokenizer()
    text = "def naïve():\n\treturn '→'"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
