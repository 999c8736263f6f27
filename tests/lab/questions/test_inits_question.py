from __future__ import annotations

import dataclasses
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from asked import runs_of, summarise
from asked import shared as shared_settings
from made_up_inits import init_run, init_runs_of
from posembed import ArgumentError
from posembed.lab.data.text import Corpus
from posembed.lab.questions.inits import Inits, InitSpec, recent, step_at
from posembed.lab.runs import train
from posembed.lab.runs.results import result_from_json
from posembed.lab.tasks.language import InitialValues, initial_table, measurements
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.report.evidence import smoothed
from tolerance import assert_close


@pytest.fixture
def shared(spec: LengthSpec) -> InitSpec:
    known = {field.name for field in dataclasses.fields(InitSpec)}
    settings = {name: value for name, value in vars(spec).items() if name in known}
    return InitSpec(**settings | {"question": "inits", "encoding": "learned", "init": ""})


@pytest.fixture
def specs(shared: InitSpec) -> list[InitSpec]:
    return runs_of(shared, Inits.usual, 2)


@pytest.mark.parametrize(
    ("init", "scale"),
    [("normal-0.02", 0.02), ("normal-.5", 0.5), ("sinusoidal", math.sqrt(0.5)), ("sinusoidal-0.02", 0.02),
     ("xavier", math.sqrt(2 / 600)), ("zero", 0.0), ("normal-0", 0.0)],
)  # fmt: skip
def test_a_start_has_the_scale_that_its_name_says(init: str, scale: float) -> None:
    table = initial_table(init, 200, 400)
    assert table.shape == (200, 400)
    assert table.square().mean().sqrt().item() == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize("init", ["normal", "normal--1", "normal-two", "uniform-0.1", "xavier-0.1", "", "normal-1e9"])
def test_a_start_that_is_not_known(init: str) -> None:
    with pytest.raises(ArgumentError, match=r"unknown initial values .* xavier, sinusoidal, zero, and normal-STD"):
        initial_table(init, 4, 4)


def test_the_runs_differ_in_the_start_and_nothing_else(specs: list[InitSpec], corpus: Corpus) -> None:
    assert [(s.init, s.seed) for s in specs] == [(init, seed) for seed in (0, 1) for init in Inits.usual]
    assert len({s.key() for s in specs}) == len(specs)
    assert {tuple(s.shared_settings().items()) for s in specs} == {tuple(specs[0].shared_settings().items())}
    assert specs[0].name == "normal-0.02, seed 0"
    task = InitialValues(corpus)
    models = [task.build(s) for s in specs[: len(Inits.usual)]]
    for model, one in zip(models, specs, strict=False):
        others = {name: value for name, value in model.state_dict().items() if name != "encoding.weight"}
        assert all(torch.equal(value, models[0].state_dict()[name]) for name, value in others.items())
        assert model.encoding.weight.shape == (one.train_length, one.width)
    assert not models[-1].encoding.weight.any()


def test_runs_that_cannot_be(shared: InitSpec, corpus: Corpus) -> None:
    with pytest.raises(ArgumentError, match="unknown initial values 'gaussian'"):
        runs_of(shared, ["zero", "gaussian"], 1)
    with pytest.raises(ArgumentError, match=r"the reference 'xavier' is not compared; the names are zero"):
        runs_of(shared, ["zero"], 1, reference="xavier")
    with pytest.raises(ArgumentError, match="seeds: expected a whole number of at least 1"):
        runs_of(shared, ["zero"], 0)
    odd = dataclasses.replace(shared, width=15, heads=3)
    with pytest.raises(ArgumentError, match="even"):
        train.check(runs_of(odd, ["sinusoidal"], 1)[0], InitialValues(corpus))


def test_a_run_measures_the_loss_and_what_became_of_the_table(
    specs: list[InitSpec], corpus: Corpus, accelerator: Accelerator
) -> None:
    task = InitialValues(corpus)
    for spec in specs[: len(Inits.usual)]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # sinusoids of amplitude 1 do drown the tokens: that is what is asked
            result = train.run(spec, task, accelerator)
        measured = result.measurements
        assert measured is not None
        assert 0 < measured.loss < math.log(256) + 0.2
        assert measured.moved > 0
        assert (measured.cosine is None) == (spec.init == "zero")
        assert (measured.moved_times is None) == (spec.init == "zero")
        assert result_from_json(result.to_json(), InitSpec) == result


def test_measures_of_a_table() -> None:
    before = torch.zeros(6, 4)
    before[:, 0] = 1
    after = before.clone()
    after[:, 1] = torch.arange(6.0) - 2.5
    found = measurements(before, after, loss=1.0, bytes_per_token=1.0)
    assert_close(found.scale_before, 0.5, dtype=torch.float32)
    assert_close(found.moved, after[:, 1].square().mean().div(4).sqrt().item(), dtype=torch.float32)
    assert_close(found.cosine, 6 / (6 * (6 + 17.5)) ** 0.5, dtype=torch.float32)
    assert (found.effective_rank_before, found.effective_rank_after) == (0, pytest.approx(1))
    assert_close(found.neighbour_cosine_before, 1, dtype=torch.float32)
    assert measurements(torch.zeros(2, 2), torch.zeros(2, 2), loss=1.0, bytes_per_token=1.0).cosine is None


def test_curves() -> None:
    falling = [(step, 10.0 - step) for step in range(1, 10)]
    means = recent(falling)
    assert means[0] == (1, 9)
    assert means[7] == (8, pytest.approx(sum(range(2, 10)) / 8))
    assert means[-1] == (9, pytest.approx(sum(range(1, 9)) / 8))
    assert step_at(falling, means[-1][1]) == 9
    assert step_at(falling, 9.0) == 1
    assert step_at(falling, 8.6) == 2
    assert step_at(falling, 1.0) is None
    assert smoothed([1.0, 2.0, 6.0]) == [1.0, 3.0, 6.0]


def test_a_summary_pairs_by_seed_and_counts_the_steps_to_the_worst_end() -> None:
    results = init_runs_of({"normal-0.02": 1.40, "zero": 1.45, "sinusoidal": 1.38}, seeds=3)
    summary = summarise(results)
    assert (summary.reference, summary.steps, summary.train_length) == ("normal-0.02", 600, 64)
    ends = {seed: [recent(r.losses)[-1][1] for r in results if r.spec.seed == seed] for seed in range(3)}
    assert summary.losses == {seed: max(losses) for seed, losses in ends.items()}
    assert_close(summary.loss, sum(map(max, ends.values())) / 3)
    reference, zero, sinusoidal = summary.rows
    assert reference.versus_reference is None
    assert zero.versus_reference is not None
    assert zero.versus_reference.value == pytest.approx(0.05, abs=0.002)
    assert zero.versus_reference.low is not None
    assert zero.versus_reference.low > 0.04  # seeds differ by more than this, and all starts alike
    assert all(row.steps_reached == 3 for row in summary.rows)
    assert zero.steps is not None
    assert sinusoidal.steps is not None
    assert sinusoidal.steps.value < zero.steps.value <= 600
    assert sinusoidal.steps_versus_reference is not None
    assert sinusoidal.steps_versus_reference.value < 1
    assert zero.cosine is None


def test_a_loss_that_some_runs_do_not_come_down_to() -> None:
    results = init_runs_of({"normal-0.02": 1.40, "zero": 2.45}, seeds=2)
    reference, zero = summarise(results, loss=1.6).rows
    assert reference.steps is not None
    assert (zero.steps, zero.steps_reached, zero.steps_versus_reference) == (None, 0, None)


def test_failures_a_missing_reference_and_nothing_at_all() -> None:
    failed = init_run("normal-0.5", 9.9, failure="the loss was nan at step 3 of 600")
    summary = summarise([init_run("zero", 1.4), failed])
    assert summary.reference == "zero"  # without N(0, 0.02), the first
    assert summary.rows[1].failures == ("seed 0: the loss was nan at step 3 of 600",)
    assert (summary.rows[1].loss, summary.rows[1].steps) == (None, None)
    assert summarise([failed]).loss is None
    with pytest.raises(ArgumentError, match="the finished runs are zero"):
        summarise([init_run("zero", 1.4)], reference="xavier")
    with pytest.raises(ArgumentError, match="nothing to summarise"):
        summarise([])


def test_a_causal_model_is_the_default_and_keeps_its_key(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text to learn from\n" * 200, encoding="utf-8")
    given = {"data": str(text), "train_length": 16, "test_tokens": 100}
    default, causal, masked = (shared_settings("inits", "quick", **given, model=m) for m in (None, "causal", "masked"))
    assert default.key() == causal.key() != masked.key()
    assert "model" not in default.shared_settings()
    assert (default.objective, masked.objective) == ("causal", "masked")
    with pytest.raises(ArgumentError, match="model: expected one of causal, masked; got 'bert'"):
        shared_settings("inits", "quick", **given, model="bert")


def test_a_masked_model_has_a_preset_of_its_own() -> None:
    inits = Inits()
    assert inits.settings(None, {"model": "masked"}) == inits.presets["tiny"] | {"model": "masked"}
    assert inits.settings("quick", {"model": "masked"}) == inits.presets["quick"] | {"model": "masked"}
    assert inits.settings(None, {"model": "causal"}) == inits.presets["quick"] | {"model": "causal"}


def test_gradient_norms_at_the_start() -> None:
    runs = init_runs_of({"normal-0.02": 1.4, "zero": 1.45}, seeds=2)
    _, zero = summarise(runs).rows
    norms = [dict(run.gradient_norms) for run in runs if run.spec.init == "zero"]
    assert zero.gradient_at_start is not None
    assert zero.highest_gradient is not None
    assert zero.gradient_at_start.values == tuple(each[1] for each in norms)
    assert zero.highest_gradient.values == tuple(max(each.values()) for each in norms)
    # Results of earlier versions have none, and a run that went on from an earlier checkpoint has none at the start.
    for kept in ((), ((12, 1.0), (18, 2.0))):
        (row,) = summarise([dataclasses.replace(runs[0], gradient_norms=kept)]).rows
        assert (row.gradient_at_start, row.highest_gradient) == (None, None)


@pytest.mark.parametrize("kept", [(), ((5, 1.0),), ((1, math.inf),), ((1, math.nan), (2, math.inf))])
def test_gradient_norms_are_means_over_all_runs_or_unknown(kept: tuple[tuple[int, float], ...]) -> None:
    runs = [init_run("zero", 1.4, seed=seed) for seed in range(3)]
    runs[1] = dataclasses.replace(runs[1], gradient_norms=kept)
    (row,) = summarise(runs).rows
    assert (row.gradient_at_start, row.highest_gradient) == (None, None)


def test_a_step_that_overflows_is_not_the_highest() -> None:
    run = dataclasses.replace(init_run("zero", 1.4), gradient_norms=((1, math.inf), (2, 3.0), (3, math.nan), (4, 2.0)))
    (row,) = summarise([run]).rows
    assert row.gradient_at_start is None
    assert row.highest_gradient is not None
    assert row.highest_gradient.value == 3.0


def test_results_of_earlier_versions_have_no_gradient_norms() -> None:
    result = init_run("zero", 1.4)
    values = json.loads(result.to_json())
    assert values.pop("gradient_norms")
    del values["spec"]["model"]
    earlier = result_from_json(json.dumps(values), InitSpec)
    assert earlier == dataclasses.replace(result, gradient_norms=())
    assert result_from_json(result.to_json(), InitSpec) == result
