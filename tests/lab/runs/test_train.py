from __future__ import annotations

import dataclasses
import itertools
import math
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from posembed.errors import ArgumentError, DataError, RunFolderError
from posembed.lab.metrics import Measured
from posembed.lab.runs import environment, train
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.sweep import sweep
from posembed.lab.runs.tensors import load_tables, snapshot_steps
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS, LengthSpec
from posembed.layers import LearnedPositionalEmbedding
from posembed.measure.frame import Value
from together import together
from tolerance import assert_close
from two_processes import be_both, fork_both

# One that draws positions, one that has learned rows, one with neither; the spec has dropout.
ENCODINGS = ["rolling", "learned", "rope"]


def numbers(result: RunResult) -> tuple[object, ...]:
    """All that a result says but how long it took."""
    return result.losses, result.gradient_norms, result.measurements, result.failure, result.parameters


def side_files(folder: RunFolder, spec: LengthSpec) -> dict[str, bytes]:
    """What stands beside the results: of a run that went well, its tables and where its heads look."""
    files = {"tables": folder.file("tables", spec), "attention": folder.file("attention", spec)}
    return {name: file.read_bytes() for name, file in files.items() if file.exists()}


@pytest.fixture
def folder(tmp_path: Path, spec: LengthSpec) -> RunFolder:
    folder = RunFolder(tmp_path, LengthSpec)
    folder.prepare(spec)
    return folder


@pytest.fixture
def whole_folder(tmp_path: Path, spec: LengthSpec) -> RunFolder:
    """For a run that nothing stops."""
    folder = RunFolder(tmp_path / "whole", LengthSpec)
    folder.prepare(spec)
    return folder


def test_learning_rate(spec: LengthSpec) -> None:
    rates = [train.learning_rate(spec, step) for step in range(spec.steps)]
    assert_close(rates[0], spec.learning_rate / 3)
    assert_close([max(rates), rates[2], rates[3]], [spec.learning_rate] * 3)
    assert_close(rates[-1], spec.learning_rate / 10)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    one = dataclasses.replace(spec, steps=1, warmup=0)
    assert_close(train.learning_rate(one, 0), spec.learning_rate)


@together("encoding", ENCODINGS, usual=lambda encoding: encoding == "rolling")
def test_the_same_spec_gives_the_same_numbers_and_learns(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, encoding: str
) -> None:
    spec = dataclasses.replace(spec, encoding=encoding, steps=40)
    first, second = (train.run(spec, task, accelerator) for _ in range(2))
    assert numbers(first) == numbers(second)
    assert first.losses[-1][1] < 0.8 * first.losses[0][1]
    other = train.run(dataclasses.replace(spec, seed=1), task, accelerator)
    assert numbers(other) != numbers(first)


@together("encoding", ENCODINGS, usual=lambda encoding: encoding == "rolling")
def test_a_run_stopped_by_ctrl_c_ends_as_if_it_had_not_been(
    spec: LengthSpec,
    task: LanguageModelling,
    accelerator: Accelerator,
    folder: RunFolder,
    whole_folder: RunFolder,
    encoding: str,
) -> None:
    spec = dataclasses.replace(spec, encoding=encoding)
    whole = train.run(spec, task, accelerator, whole_folder)

    def press_ctrl_c(progress: train.Step) -> None:
        if progress.step in (5, 9):
            os.kill(os.getpid(), signal.SIGINT)

    for steps in (5, 9):
        with pytest.raises(KeyboardInterrupt):
            train.run(spec, task, accelerator, folder, press_ctrl_c)
        state = torch.load(folder.file("checkpoints", spec), weights_only=True)["state"]
        assert state["step"] == steps
    assert numbers(train.run(spec, task, accelerator, folder, press_ctrl_c)) == numbers(whole)
    if encoding == "rope":
        assert not folder.file("tables", spec).exists()
    else:
        rows = load_tables(folder.file("tables", spec), spec.steps)
        assert list(rows) == [0, *snapshot_steps(spec.steps), spec.steps]
        for step, next_step in itertools.pairwise(rows):
            assert not torch.equal(rows[step], rows[next_step])
    assert side_files(folder, spec) == side_files(whole_folder, spec)


@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_a_killed_run_ends_bit_for_bit_as_if_it_had_not_been(
    spec: LengthSpec,
    task: LanguageModelling,
    accelerator: Accelerator,
    folder: RunFolder,
    whole_folder: RunFolder,
) -> None:
    def kill(progress: train.Step) -> None:
        if progress.step == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    spec = dataclasses.replace(spec, encoding="rolling")
    whole = train.run(spec, task, accelerator, whole_folder)
    child = os.fork()
    if not child:
        try:
            train.SECONDS_BETWEEN_CHECKPOINTS = 0.0
            train.run(spec, task, accelerator, folder, kill)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert torch.load(folder.file("checkpoints", spec), weights_only=True)["state"]["step"] == 7
    assert numbers(train.run(spec, task, accelerator, folder)) == numbers(whole)
    assert side_files(folder, spec) == side_files(whole_folder, spec)


def test_a_run_whose_end_is_not_finite_has_failed(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step may spoil the weights after its loss was seen, and held-out text may overflow by itself."""
    spoiled = dataclasses.replace(spec, steps=1, warmup=0, learning_rate=1e39, encoding="rope")
    result = train.run(spoiled, task, accelerator)
    assert result.failure == "weights were not finite after step 1; try a lower learning rate"
    assert result.measurements is None
    measure = task.measure
    monkeypatch.setattr(
        task, "measure", lambda *a: Measured((*measure(*a).values, Value(SAME_TOKENS.name, math.nan, 40)))
    )
    result = train.run(dataclasses.replace(spec, steps=2, encoding="rope"), task, accelerator)
    assert result.failure == "perplexity of the same tokens at 40 was nan on held-out data; try a lower learning rate"
    assert result.measurements is None


@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_two_processes_train_the_same_run(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    """The same global batch over two gloo processes: the same loss within 1e-4, and the same measurements."""
    spec = dataclasses.replace(spec, encoding="rolling", dropout=0.0, steps=12)
    alone = train.run(spec, task, accelerator)
    torch.save((spec, task), tmp_path / "asked.pt")
    fork_both(train_in_both, __file__, tmp_path / "store")
    (shared,) = RunFolder(tmp_path / "run", LengthSpec).results()
    assert shared.environment["processes"] == "2"
    for (step, ours), (_, theirs) in zip(alone.losses, shared.losses, strict=True):
        assert_close(ours, theirs, msg=step, dtype=torch.float32, depth=4 * (step + 1))
    assert alone.measurements is not None
    assert shared.measurements is not None
    assert shared.measurements.by_x(SAME_TOKENS) == pytest.approx(alone.measurements.by_x(SAME_TOKENS), abs=1e-3)
    assert shared.measurements.by_x(REPEAT_GAIN).keys() == alone.measurements.by_x(REPEAT_GAIN).keys()


def train_in_both(rank: int) -> None:
    """Trains what the test has saved, in two processes with the environment variables of torchrun."""
    folder = Path(sys.argv[1]).parent
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    spec, task = torch.load(folder / "asked.pt", weights_only=False)
    accelerator = environment.make_accelerator(device="cpu")
    assert accelerator.num_processes == 2
    sweep([spec], task, RunFolder(folder / "run", type(spec)), accelerator)


def test_training_adds_the_auxiliary_loss_of_an_encoding(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dataclasses.replace(spec, encoding="learned")
    results = [train.run(spec, task, accelerator)]
    table = LearnedPositionalEmbedding.table
    monkeypatch.setattr(LearnedPositionalEmbedding, "auxiliary_loss", lambda self, *_: table(self).square().mean())
    results.insert(0, train.run(spec, task, accelerator))
    for (step, norm), (_, without) in zip(*(result.gradient_norms for result in results), strict=True):
        assert norm != without, step
    # The loss that a run reports is the model's.
    assert results[0].losses[0][1] == pytest.approx(results[1].losses[0][1], rel=0.1)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = task.build

    def poisoned(spec: LengthSpec) -> torch.nn.Module:
        model = build(spec)
        calls = iter(range(100))

        def forward(ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
            logits = type(model).forward(model, ids, position_ids)
            return logits * float("inf") if next(calls) == 4 else logits

        model.forward = forward  # type: ignore[method-assign]
        return model

    monkeypatch.setattr(task, "build", poisoned)
    result = train.run(dataclasses.replace(spec, encoding="rope"), task, accelerator)
    assert result.failure == "the loss was nan at step 5 of 12; try a lower learning rate"
    assert result.measurements is None


def test_what_cannot_work_is_refused_before_it_trains(spec: LengthSpec, task: LanguageModelling) -> None:
    rope = dataclasses.replace(spec, encoding="rope")
    with pytest.raises(ArgumentError, match=r"batch=4 cannot be shared evenly by 3 processes"):
        train.check(rope, task, 3)
    with pytest.raises(ArgumentError, match=r"ring=3 is smaller than window=8"):
        train.check(dataclasses.replace(spec, encoding="rolling", window=8, ring=3), task)
    with pytest.raises(DataError, match=r"test lengths up to 99,999"):
        train.check(dataclasses.replace(rope, test_lengths=(16, 99_999)), task)
    with pytest.raises(DataError, match=r"the text to train on has [0-9,]+ tokens, and a training length of 90,000"):
        train.check(dataclasses.replace(rope, train_length=90_000), task)
    with pytest.raises(ArgumentError, match="even"):
        train.check(dataclasses.replace(spec, encoding="sinusoidal", width=15, heads=3), task)


def test_a_checkpoint_that_cannot_be_read(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, folder: RunFolder
) -> None:
    spec = dataclasses.replace(spec, encoding="rope")
    file = folder.file("checkpoints", spec)
    file.write_bytes(b"half a file")
    with pytest.raises(RunFolderError, match=r"checkpoint .* cannot be read .*delete it"):
        train.run(spec, task, accelerator, folder)
    file.unlink()
    train.run(spec, task, accelerator, folder)
    torch.save({**torch.load(file, weights_only=True), "draws": 1}, file)
    with pytest.raises(RunFolderError, match=r"cannot be read \(its random draws are those of another version\)"):
        train.run(spec, task, accelerator, folder)


@pytest.mark.parametrize("precisions", [("no", "bf16", "no"), ("bf16", "no", "bf16")])
def test_comparisons_in_several_precisions(spec: LengthSpec, task: LanguageModelling, precisions: list[str]) -> None:
    found = {}
    for precision in precisions:
        asked = dataclasses.replace(spec, encoding="rope", precision=precision)
        accelerator = environment.make_accelerator(precision, "cpu")
        assert accelerator.mixed_precision == precision
        got = numbers(train.run(asked, task, accelerator))
        assert found.setdefault(precision, got) == got
    assert found["no"] != found["bf16"]
    environment.make_accelerator("no", "cpu")


def test_accelerators_that_are_not_there() -> None:
    with pytest.raises(ArgumentError, match="precision must be"):
        environment.make_accelerator("fp8")
    with pytest.raises(ArgumentError, match="device must be"):
        environment.make_accelerator("no", "tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="no cuda device"):
            environment.make_accelerator("no", "cuda")


if __name__ == "__main__":
    be_both(train_in_both)
