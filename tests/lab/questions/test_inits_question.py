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
from posembed.errors import ArgumentError
from posembed.lab.data.text import Corpus
from posembed.lab.questions.tables import GRADIENTS, STEPS, Inits, losses_to_reach, recent, step_at
from posembed.lab.runs import train
from posembed.lab.runs.results import result_from_json
from posembed.lab.tasks.language import InitialValues, initial_table, measured_table
from posembed.lab.tasks.text_specs import CHANGES, LOSS, InitSpec, LengthSpec
from posembed.report.evidence import smoothed
from tolerance import assert_close

MOVED, MOVED_TIMES, COSINE = CHANGES[2:5]


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
        values = {value.metric: value.value for value in measured.values}
        assert 0 < values[LOSS.name] < math.log(256) + 0.2
        assert values[MOVED.name] > 0
        assert (values[COSINE.name] is None) == (spec.init == "zero")
        assert (values[MOVED_TIMES.name] is None) == (spec.init == "zero")
        assert result_from_json(result.to_json(), InitSpec) == result


def test_measures_of_a_table() -> None:
    before = torch.zeros(6, 4)
    before[:, 0] = 1
    after = before.clone()
    after[:, 1] = torch.arange(6.0) - 2.5
    measured = measured_table(before, after, loss=1.0)
    scale, _, moved, _, cosine, rank, rank_after, neighbours, _ = (measured.by_x(metric)[None] for metric in CHANGES)
    assert_close(scale, 0.5, dtype=torch.float32)
    assert_close(moved, after[:, 1].square().mean().div(4).sqrt().item(), dtype=torch.float32)
    assert_close(cosine, 6 / (6 * (6 + 17.5)) ** 0.5, dtype=torch.float32)
    assert (rank, rank_after) == (0, pytest.approx(1))
    assert_close(neighbours, 1, dtype=torch.float32)
    assert measured_table(torch.zeros(2, 2), torch.zeros(2, 2), loss=1.0).by_x(COSINE) == {None: None}


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
    found = summarise(results)
    assert found.reference == "normal-0.02"
    ends = {seed: [recent(r.losses)[-1][1] for r in results if r.spec.seed == seed] for seed in range(3)}
    losses = losses_to_reach(results, found.reading)
    assert losses == {seed: max(each) for seed, each in ends.items()}
    assert f"{sum(losses.values()) / 3:.3f}" in " ".join(found.question.remarks(found))
    assert found.versus(LOSS, "normal-0.02") is None
    zero = found.versus(LOSS, "zero").over_seeds
    assert zero.value == pytest.approx(0.05, abs=0.002)
    assert zero.low > 0.04  # seeds differ by more than this, and all starts alike
    assert found.mean(STEPS, "sinusoidal").value < found.mean(STEPS, "zero").value <= 600
    ratio = found.versus(STEPS, "sinusoidal").over_seeds  # a mean of logarithms, paired by seed
    pairs = zip(*(found.by_seed(STEPS, name).values() for name in ("sinusoidal", "normal-0.02")), strict=True)
    assert_close(ratio.value, math.prod(a / b for a, b in pairs) ** (1 / 3))
    assert_close(found.mean(STEPS, "zero").value, sum(found.by_seed(STEPS, "zero").values()) / 3)
    assert found.mean(COSINE, "zero") is None


def test_a_loss_that_some_runs_do_not_come_down_to() -> None:
    found = summarise(init_runs_of({"normal-0.02": 1.40, "zero": 2.45}, seeds=2), loss=1.6)
    assert found.mean(STEPS, "normal-0.02") is not None
    assert found.mean(STEPS, "zero") is found.versus(STEPS, "zero") is None
    assert "Not every run reached it: 0 of 2 with zero." in " ".join(found.question.remarks(found))


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


def test_gradient_norms_are_means_over_all_runs_or_unknown() -> None:
    start, highest = GRADIENTS
    runs = init_runs_of({"normal-0.02": 1.4, "zero": 1.45}, seeds=2)
    found, norms = summarise(runs), [dict(run.gradient_norms) for run in runs if run.spec.init == "zero"]
    assert found.mean(start, "zero").values == tuple(each[1] for each in norms)
    assert found.mean(highest, "zero").values == tuple(max(each.values()) for each in norms)
    # Earlier versions kept none, and a run that went on from an earlier checkpoint has none at the start.
    for kept in ((), ((12, 1.0), (18, 2.0)), ((5, 1.0),), ((1, math.inf),), ((1, math.nan), (2, math.inf))):
        some = [init_run("zero", 1.4, seed=seed) for seed in range(3)]
        some[1] = dataclasses.replace(some[1], gradient_norms=kept)
        assert summarise(some).mean(start, "zero") is summarise(some).mean(highest, "zero") is None, kept
    overflow = dataclasses.replace(runs[0], gradient_norms=((1, math.inf), (2, 3.0), (3, math.nan), (4, 2.0)))
    found = summarise([overflow])
    assert found.mean(start, "normal-0.02") is None
    assert found.mean(highest, "normal-0.02").value == 3.0  # a step that overflows is not the highest


def test_results_of_earlier_versions_have_no_gradient_norms() -> None:
    result = init_run("zero", 1.4)
    values = json.loads(result.to_json())
    assert values.pop("gradient_norms")
    del values["spec"]["model"]
    earlier = result_from_json(json.dumps(values), InitSpec)
    assert earlier == dataclasses.replace(result, gradient_norms=())
    assert result_from_json(result.to_json(), InitSpec) == result
