from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from asked import runs_of, summarise
from fresh_process import run_fresh
from posembed.errors import RunFolderError
from posembed.lab.data.text import Corpus
from posembed.lab.model import PositionedModel
from posembed.lab.runs.environment import make_accelerator
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.sweep import plan, sweep
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec


class Diary:
    """Remembers which runs were trained; may press Ctrl-C in the middle of one."""

    def __init__(self, stop_in: str | None = None) -> None:
        self.trained: list[str] = []
        self.stop_in = stop_in

    def __call__(self, name: str, done: int, total: int) -> None:
        encoding = name.split(",")[0]
        if "loss" not in name:
            self.trained.append(encoding)
            self.begun = done
        assert encoding == self.trained[-1]
        if encoding == self.stop_in and done == self.begun + 6:
            os.kill(os.getpid(), signal.SIGINT)


def numbers(results: Sequence[RunResult]) -> list[object]:
    return [(r.spec, r.losses, r.measurements) for r in results]


def test_a_sweep_cut_off_goes_on_where_it_stopped(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    specs = runs_of(spec, ["learned", "rope", "alibi"], 1)
    whole = sweep(specs, task, RunFolder(tmp_path / "whole", LengthSpec), accelerator)
    folder = RunFolder(tmp_path / "cut", LengthSpec)
    with pytest.raises(KeyboardInterrupt):
        sweep(specs, task, folder, accelerator, Diary(stop_in="rope"))
    assert [r.spec.encoding for r in folder.results()] == ["learned"]
    diary = Diary()
    assert numbers(sweep(specs, task, folder, accelerator, diary)) == numbers(whole)
    assert diary.trained == ["rope", "alibi"]
    assert list(folder.path.glob("checkpoints/*")) == []
    diary = Diary()
    sweep(specs, task, folder, accelerator, diary)
    assert diary.trained == []


def test_more_seeds_and_encodings_join_a_folder(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    spec = dataclasses.replace(spec, steps=2)
    sweep(runs_of(spec, ["rope"], 1), task, RunFolder(tmp_path, LengthSpec), accelerator)
    diary = Diary()
    sweep(runs_of(spec, ["rope", "none"], 2), task, RunFolder(tmp_path, LengthSpec), accelerator, diary)
    assert diary.trained == ["none", "rope", "none"]
    with pytest.raises(RunFolderError, match="steps: 2 there, 3 now"):
        sweep(
            runs_of(dataclasses.replace(spec, steps=3), ["rope"], 1), task, RunFolder(tmp_path, LengthSpec), accelerator
        )


def test_a_run_whose_own_settings_changed_is_refused_before_any_trains(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    class Own(LengthSpec):
        def shared_settings(self) -> dict[str, Any]:
            return {name: value for name, value in super().shared_settings().items() if name != "train_length_counts"}

    folder, diary = RunFolder(tmp_path, Own), Diary()
    values = dataclasses.asdict(spec) | {"encoding": "rope", "steps": 1, "train_lengths": "some.txt"}
    sweep([Own(**values | {"train_length_counts": ((8, 1),)})], task, folder, accelerator)
    changed = Own(**values | {"train_length_counts": ((9, 1),)})
    with pytest.raises(RunFolderError, match="the run 'rope, seed 0' with other values of train_length_counts"):
        sweep([dataclasses.replace(changed, encoding="none"), changed], task, folder, accelerator, diary)
    assert diary.trained == []


def test_one_failed_run_does_not_stop_the_others(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = task.build

    def poisoned(spec: LengthSpec) -> object:
        model = build(spec)
        if spec.encoding == "rope":
            model.body.norm.weight.data.fill_(float("inf"))
        return model

    monkeypatch.setattr(task, "build", poisoned)
    specs = runs_of(dataclasses.replace(spec, steps=2), ["rope", "alibi"], 1)
    results = sweep(specs, task, RunFolder(tmp_path, LengthSpec), accelerator)
    assert "at step 1 of 2" in (results[0].failure or "")
    assert results[1].failure is None
    assert RunFolder(tmp_path, LengthSpec).results() == results
    found = summarise(results)
    row = found.rows[0]
    assert row.failures == ("seed 0: " + (results[0].failure or ""),)
    assert set(found.by_x(found.headline, row.name).values()) == {None}


def test_a_plan_counts_parameters_exactly_and_guesses_a_time(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator
) -> None:
    planned = plan(runs_of(spec, ["learned", "rolling", "rope"], 2), task, accelerator)
    assert [run.position_parameters for run in planned] == [16 * 16, spec.ring * 16, 0] * 2
    plain = planned[2].parameters
    assert [run.parameters - plain for run in planned[:2]] == [256, spec.ring * 16]
    assert all(run.seconds > 0 for run in planned)


@pytest.fixture
def in_bf16() -> Iterator[Accelerator]:
    """An accelerator in bf16. Accelerators share a state, which is restored."""
    yield make_accelerator("bf16", "cpu")
    make_accelerator("no", "cpu")


def test_a_plan_times_steps_in_the_precision_of_training(
    spec: LengthSpec, corpus: Corpus, in_bf16: Accelerator, tmp_path: Path
) -> None:
    seen: set[torch.dtype] = set()

    class Watched(LanguageModelling):
        def build(self, spec: LengthSpec) -> PositionedModel:
            model = super().build(spec)
            for layer in model.modules():
                if isinstance(layer, torch.nn.Linear):
                    layer.register_forward_hook(lambda layer, inputs, output: seen.add(output.dtype))
            return model

    spec = dataclasses.replace(spec, encoding="rope", precision="bf16", steps=4)
    task = LanguageModelling(corpus)
    (fresh,) = sweep([spec], task, RunFolder(tmp_path / "a", LengthSpec), in_bf16)
    plan([spec], Watched(corpus), in_bf16)
    assert seen == {torch.bfloat16}
    (after,) = sweep([spec], task, RunFolder(tmp_path / "b", LengthSpec), in_bf16)
    assert numbers([after]) == numbers([fresh])


def test_a_plan_imports_no_compiler(tmp_path: Path) -> None:
    """Importing torch._dynamo takes seconds; a plan is asked for before each command."""
    code = """
import sys
from pathlib import Path

from posembed.comparison import prepare

Path("text.txt").write_text("\\n".join(f"line {n} of a text" for n in range(400)))
sizes = {"layers": 1, "width": 8, "heads": 2, "train_length": 16, "test_lengths": (16, 32), "test_tokens": 64}
runs = {"encodings": ("learned", "rope", "t5"), "data": "text.txt", "steps": 2, "batch": 2, "device": "cpu"}
assert len(prepare("lengths", {**sizes, **runs}).plan()) == 3
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
"""
    status, printed = run_fresh(code, tmp_path)
    assert status == 0, printed
