from __future__ import annotations

import dataclasses
import os
import textwrap
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fresh_process import run_python
from posembed.errors import ArgumentError
from posembed.lab.metrics import Measured
from posembed.lab.runs.environment import make_accelerator
from posembed.lab.runs.results import RunFolder, measured_values
from posembed.lab.runs.sweep import check_tracker, sweep
from posembed.lab.runs.train import learning_rate
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import SAME_TOKENS, LengthSpec
from posembed.measure.frame import Value
from tolerance import assert_close


def test_every_step_and_the_measurements_are_in_tensorboards_files(
    spec: LengthSpec, task: LanguageModelling, tmp_path: Path
) -> None:
    specs = [dataclasses.replace(spec, encoding=name, steps=6) for name in ("learned", "rope")]
    accelerator = make_accelerator(device="cpu", track="tensorboard", tracking=tmp_path / "runs" / "tracking")
    results = sweep(specs, task, RunFolder(tmp_path / "runs", LengthSpec), accelerator, track="tensorboard")
    for one, result in zip(specs, results, strict=True):
        events = EventAccumulator(str(tmp_path / "runs" / "tracking" / one.key()))
        events.Reload()
        losses = events.Scalars("training loss")
        assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
        assert_close([event.value for event in losses], [loss for _, loss in result.losses], dtype=torch.float32)
        rates = [event.value for event in events.Scalars("learning rate")]
        assert_close(rates, [learning_rate(one, step) for step in range(6)], dtype=torch.float32)
        assert result.measurements is not None
        name_of = f"log {SAME_TOKENS.name}"
        measured = {name for name in events.Tags()["scalars"] if name.startswith(f"{name_of}/")}
        there = {length for length, loss in result.measurements.by_x(SAME_TOKENS).items() if loss is not None}
        assert measured == {f"{name_of}/{length}" for length in there}
        (last,) = events.Scalars(f"{name_of}/16")
        assert (last.step, last.value) == (6, pytest.approx(result.measurements.by_x(SAME_TOKENS)[16]))


def test_values_by_name() -> None:
    items = (Value("accuracy", 3.0, 8, 1, weight=4), Value("accuracy", 1.0, 8, 2, weight=4))
    values = (Value("gap", 1.5), Value("gap", None, 8), *items, Value(SAME_TOKENS.name, 2.0, 8))
    found = measured_values(Measured(values))
    assert found == {"gap": 1.5, "accuracy/8": 0.5, "log perplexity of the same tokens/8": 2.0}


def test_a_tracker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tracker("tensorboard")
    with pytest.raises(ArgumentError, match=r"unknown tracker 'visdom'; choose from tensorboard, wandb"):
        check_tracker("visdom")
    monkeypatch.setattr("posembed.lab.runs.sweep.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"needs the library tensorboard; install it with: pip install 'posem"):
        check_tracker("tensorboard")
    with pytest.raises(ArgumentError, match=r"--track wandb needs the library wandb; .* pip install wandb"):
        check_tracker("wandb")


def test_weights_and_biases_is_given_the_run_and_its_values(tmp_path: Path) -> None:
    """A stand-in for the library, where Accelerate finds it, writes down how it is called."""
    (tmp_path / "wandb-0.0.0.dist-info").mkdir()
    (tmp_path / "wandb-0.0.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: wandb\nVersion: 0\n")
    (tmp_path / "wandb.py").write_text(
        textwrap.dedent(
            """
            def init(**given):
                print("init", given["project"], given["name"], given["config"]["steps"], given["resume"])
                return Run()
            class Run:
                def log(self, values, step): print("log", step, *values)
                def finish(self): print("finish")
            """
        )
    )
    (tmp_path / "text.txt").write_text("a line of text that comes again and again\n" * 60)
    settings = "--train-length 8 --test-lengths 8 --layers 1 --width 8 --heads 2 --steps 2 --batch 2 --test-tokens 99"
    command = f"compare lengths --data text.txt --encodings rope --track wandb --out runs --device cpu {settings}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_python("-m", "posembed", *command.split(), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:3] == [
        "init posembed rope, seed 0 2 allow",
        "log 1 training loss learning rate",
        "log 2 training loss learning rate",
    ]
    assert said[3].startswith("log 2 log perplexity of the same tokens/8 log perplexity over whole windows/8")
    assert said[4] == "finish"
