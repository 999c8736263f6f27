"""Trainer on models with replaced tables, and what its callback logs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers as hf

import replaced_models as made
from posembed.errors import ArgumentError
from posembed.integrations.transformers import TableCallback, from_pretrained, replace_positions
from together import pairwise, together

ENCODINGS = {
    "learned": {}, "rope": {}, "alibi": {}, "t5": {}, "kerple-log": {}, "fire": {}, "rolling": {"window": 5},
    "learned-averaged": {},
}  # fmt: skip


def trainer(model: nn.Module | None, folder: Path, model_init: Any = None, **settings: Any) -> hf.Trainer:
    torch.manual_seed(0)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(5, made.VOCABULARY, (24, 12))]
    settings = {"max_steps": 3, "learning_rate": 1e-2, "save_strategy": "no", "report_to": "none", **settings}
    arguments = hf.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, logging_steps=1,
        dataloader_pin_memory=False, **settings,
    )  # fmt: skip
    return hf.Trainer(model=model, args=arguments, train_dataset=rows, model_init=model_init)  # type: ignore[arg-type]


@together("encoding", ENCODINGS, usual=lambda encoding: encoding in ("learned", "t5", "rolling", "learned-averaged"))
def test_trainer_trains_every_encoding_and_saves_it(encoding: str, tmp_path: Path) -> None:
    model = replace_positions(made.tiny("gpt2"), encoding, **ENCODINGS[encoding])
    before = copy.deepcopy(model.state_dict())
    more = {f"{made.RECOMPUTING}_checkpointing": encoding == "t5"}
    run = trainer(model, tmp_path, save_strategy="steps", save_steps=3, **more)
    assert run.train().training_loss < 20
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert {key for key in before if ".encoding." in key} <= changed
    again = from_pretrained(tmp_path / "checkpoint-3")
    given = made.inputs("gpt2")
    with torch.no_grad():
        assert torch.equal(again.eval()(**given).logits, model.eval()(**given).logits)


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    def model() -> Any:
        return replace_positions(made.tiny("gpt2"), "rolling", window=5)

    whole = model()
    trainer(whole, tmp_path / "a", max_steps=4).train()
    parts = model()
    trainer(parts, tmp_path / "b", max_steps=4, save_strategy="steps", save_steps=2).train()
    resumed = model()
    trainer(resumed, tmp_path / "b", max_steps=4).train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-2"))
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


@pytest.mark.parametrize("own", [True, False])
def test_the_callback_logs_and_draws(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    model = made.tiny("gpt2")
    if not own:
        replace_positions(model, "learned")
    run = trainer(model, tmp_path, report_to="tensorboard")
    callback = TableCallback(run)
    run.add_callback(callback)
    run.train()
    logged = [entry for entry in run.state.log_history if "positions/effective_rank" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 3]
    # Texts of 12 tokens train 11 rows: what the last token says is not in the loss.
    assert all(entry["positions/rows_unchanged"] == made.LENGTH - 11 for entry in logged)
    assert callback.history[-1]["norm_mean"] == logged[-1]["positions/norm_mean"]
    assert (tmp_path / "position_table.png").stat().st_size > 1000
    events = next((tmp_path / "logs").rglob("events*")).read_bytes()
    assert b"positions/neighbour_cosine" in events


@pytest.mark.parametrize(("strategy", "builds"), pairwise(["steps", "epoch"], [True, False]))
def test_the_callback_logs_when_the_trainer_does(strategy: str, builds: bool, tmp_path: Path) -> None:
    def model() -> Any:
        return replace_positions(made.tiny("gpt2"), "learned")

    run = trainer(None if builds else model(), tmp_path, max_steps=12, logging_strategy=strategy,
                  model_init=model if builds else None)  # fmt: skip
    callback = TableCallback(run)
    run.add_callback(callback)
    run.train()
    steps = [entry["step"] for entry in run.state.log_history if "loss" in entry]
    assert [state["step"] for state in callback.history] == steps
    assert callback.history[-1]["rows_unchanged"] == made.LENGTH - 11


def test_the_callback_needs_one_table(tmp_path: Path) -> None:
    run = trainer(replace_positions(made.tiny("gpt2"), "rope"), tmp_path)
    with pytest.raises(ArgumentError, match="0 position tables"):
        TableCallback(run)
