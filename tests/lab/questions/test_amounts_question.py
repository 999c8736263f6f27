"""Runs that train on an amount of text, and runs that differ in a second setting."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from asked import runs_of
from posembed.comparison import Comparison
from posembed.errors import ArgumentError, DataError
from posembed.lab.data.text import Corpus
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.amounts import Dropout
from posembed.lab.runs import train
from posembed.lab.runs.results import RunFolder, result_from_json
from posembed.lab.runs.sweep import plan, sweep
from posembed.lab.tasks.amounts import DropoutAfterTheSum, TrainingOnLess
from posembed.lab.tasks.amounts_specs import (
    GAP,
    HELD_OUT,
    TRAIN_TOKENS,
    TRAINING_TEXT,
    DataSpec,
    DropoutSpec,
    canonical_amount,
    measured_losses,
    require_different,
    share_or_tokens,
    tokens_of,
)
from posembed.lab.tasks.text_specs import LengthSpec
from together import together
from tolerance import assert_close

AMOUNTS = ["300", "1/4", "1"]


def of(spec: LengthSpec, kind: type[DataSpec] | type[DropoutSpec], **own: object) -> DataSpec | DropoutSpec:
    known = {field.name for field in dataclasses.fields(kind)}
    shared = {name: value for name, value in vars(spec).items() if name in known}
    question = "dropout" if kind is DropoutSpec else "data-efficiency"
    return kind(**shared | {"question": question, "dropout": 0.0, "encoding": "learned"} | own)  # type: ignore[arg-type]


@pytest.fixture
def specs(spec: LengthSpec) -> list[DataSpec]:
    return runs_of(of(spec, DataSpec), ["learned", "rope"], 2, AMOUNTS)


# --- a second setting that varies ----------------------------------------------------------------------------------


def test_a_sweep_trains_each_run_once_and_reports_them(
    specs: list[DataSpec], corpus: Corpus, accelerator: Accelerator, tmp_path
) -> None:
    task = TrainingOnLess(corpus)
    specs = [dataclasses.replace(s, steps=2, warmup=1) for s in specs if s.seed == 0]
    planned = plan(specs[:6], task, accelerator)
    assert [run.name for run in planned] == [spec.name for spec in specs[:6]]
    folder: RunFolder[DataSpec] = RunFolder(tmp_path, DataSpec)
    sweep(specs[:3], task, folder, accelerator)  # an interrupted sweep
    results = sweep(specs, task, folder, accelerator)
    assert [result.spec for result in results] == specs
    assert {result.spec for result in folder.results()} == set(specs)
    for result in results:
        assert result_from_json(result.to_json(), DataSpec) == result
    assert results[0].measurements == train.run(specs[0], task, accelerator).measurements
    summary = QUESTIONS["data-efficiency"].summarise(results)
    tokens = len(corpus.train)
    assert summary.xs(HELD_OUT) == (300, round(tokens / 4), tokens)
    assert [row.succeeded for row in summary.rows] == [3, 3]
    shown = Comparison(QUESTIONS["data-efficiency"], tmp_path, results, summary).learned_tables()
    assert list(shown) == ["learned"]
    assert {run.spec.amount for run in QUESTIONS["data-efficiency"].shown(results)} == {"1"}


# --- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("4/16", "1/4"), ("0.25", "1/4"), (".5", "1/2"), ("1.0", "1"), ("4/4", "1"), ("8192", "8192"), ("0300", "300")],
)
def test_an_amount_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_amount(text) == canonical_amount(canonical) == canonical


@together("text", ["", "0", "0/4", "1/0", "-1", "3/2", "1.5", "all", "1e3", "1/2/3", "nan", "٣"])
def test_other_amounts_are_refused(text: str) -> None:
    assert canonical_amount(text) == text
    with pytest.raises(ArgumentError, match=r"expected amounts of training text as shares .* or numbers of tokens"):
        share_or_tokens(text)


@settings(max_examples=60)
@given(st.integers(2, 5000), st.integers(1, 50), st.integers(1, 50))
def test_an_amount_means_a_number_of_tokens(available: int, a: int, b: int) -> None:
    part, whole = sorted((a, b))
    assert abs(tokens_of(f"{part}/{whole}", available) - available * part / whole) <= 0.5
    assert tokens_of("1", available) == available
    assert tokens_of(str(available), available) == available
    with pytest.raises(DataError, match=f"has {available:,} tokens, fewer than the amount {available + 1:,}"):
        tokens_of(str(available + 1), available)


def test_a_stretch_depends_on_the_seed_and_lies_in_every_larger_one(spec: LengthSpec, corpus: Corpus) -> None:
    task, starts = TrainingOnLess(corpus), set()
    for seed in range(5):
        small, large, every = (task.text(of(spec, DataSpec, amount=each, seed=seed)) for each in AMOUNTS)
        assert (len(small), len(large), len(every)) == (300, round(len(corpus.train) / 4), len(corpus.train))
        assert every.data_ptr() <= large.data_ptr() <= small.data_ptr()
        assert small.data_ptr() + 300 <= large.data_ptr() + len(large)  # bytes: one each
        starts.add(small.data_ptr())
        spec_of = of(spec, DataSpec, amount="300", seed=seed)
        inputs, targets, _ = task.draw(spec_of, task.build(dataclasses.replace(spec_of, encoding="rope")), 0)
        ids = torch.cat((inputs, targets[:, -1:]), dim=1)
        windows = {tuple(w.tolist()) for w in small.unfold(0, spec.train_length + 1, 1)}
        assert {tuple(row.tolist()) for row in ids} <= windows
    assert len(starts) == 5


def test_all_of_the_text_trains_as_compare_lengths_does(
    spec: LengthSpec, corpus: Corpus, accelerator: Accelerator, task
) -> None:
    """The batches are the same, to the last bit; only the measurements differ."""
    ours = of(spec, DataSpec, amount="1", encoding="rope")
    theirs = dataclasses.replace(spec, encoding="rope", dropout=0.0)
    assert train.run(ours, TrainingOnLess(corpus), accelerator).losses == train.run(theirs, task, accelerator).losses


def test_both_losses_are_those_of_the_model_in_eval_mode(
    spec: LengthSpec, corpus: Corpus, accelerator: Accelerator
) -> None:
    task = TrainingOnLess(corpus)
    of_spec = of(spec, DataSpec, amount="300", encoding="learned", dropout=0.5)
    model = task.build(of_spec).eval()
    found = task.measure(of_spec, model, accelerator)
    held_out, training = task.measured_windows(of_spec)
    assert len(training) == 299 // spec.train_length  # all whole windows of the stretch
    for windows, loss in ((held_out, found.by_x(HELD_OUT)[300]), (training, found.by_x(TRAINING_TEXT)[300])):
        logits = model.double()(windows[:, :-1])
        expected = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        assert_close(loss, expected.item(), dtype=torch.float32)
    assert found.sizes == {TRAIN_TOKENS: 300}
    assert measured_losses(2.0, 1.5, 9, by_amount=False).by_x(GAP) == {None: 0.5}


@pytest.mark.parametrize("available", [20, 27, 3000, 8192])
def test_amounts_that_are_the_same_text_are_refused(available: int) -> None:
    amounts = ("1", "1/2", "1/3", "0.3333", "9", "10", str(available))
    for pair in itertools.combinations(amounts, 2):
        if len({tokens_of(amount, available) for amount in pair}) == 2:
            require_different(pair, available)
        else:
            with pytest.raises(ArgumentError, match=rf"{pair[0]} and {pair[1]} are the same text, [\d,]+ tokens"):
                require_different(pair, available)


def test_too_little_text_is_refused_before_anything_trains(spec: LengthSpec, corpus: Corpus) -> None:
    for amount, message in (
        ("16", "the amount 16 has 16 tokens, and a training length of 16"),
        ("1/999999", "the amount 1/999999 has 0 tokens, .* use a larger amount"),
        ("999999", "fewer than the amount"),
    ):
        with pytest.raises(DataError, match=message):
            train.check(of(spec, DataSpec, amount=amount, encoding="rope"), TrainingOnLess(corpus))
    with pytest.raises(ArgumentError, match=r"use a larger --amount, or fewer --test-tokens"):
        train.check(of(spec, DropoutSpec, amount="300", rate="0.1"), DropoutAfterTheSum(corpus))


# --- dropout -------------------------------------------------------------------------------------------------------


def test_dropout_follows_the_sum_alone(spec: LengthSpec, corpus: Corpus) -> None:
    task = DropoutAfterTheSum(corpus)
    dropped = task.build(of(spec, DropoutSpec, amount="1/2", rate="0.3")).train()
    plain = task.build(of(spec, DropoutSpec, amount="1/2", rate="0")).train()
    assert all(torch.equal(a, b) for a, b in zip(dropped.parameters(), plain.parameters(), strict=True))
    x = torch.ones(8, spec.train_length, spec.width)
    ids = torch.arange(spec.train_length)
    out = dropped.encoding.at_input(x, ids)
    zeros = (out == 0).float().mean().item()
    assert zeros == pytest.approx(0.3, abs=0.05)
    kept = plain.encoding.at_input(x, ids)
    assert_close(out[out != 0], (kept / 0.7)[out != 0])
    tokens = torch.randint(50, (2, 16))
    assert torch.equal(dropped.eval()(tokens), plain.eval()(tokens))
    body = [m.p for m in dropped.body.modules() if isinstance(m, torch.nn.Dropout)]
    assert set(body) <= {0.0}


def test_rates_have_one_spelling_and_others_are_refused(spec: LengthSpec) -> None:
    question = Dropout()
    assert [question.canonical(text) for text in ("0", "0.0", ".1", "0.10", ".000010")] == [
        "0",
        "0",
        "0.1",
        "0.1",
        "0.00001",
    ]
    question.check_name("0.00001")
    for rate in ("1", "-0.1", "nan", "1.5", "", "high"):
        with pytest.raises(ArgumentError, match="rates: expected numbers of at least 0 and below 1"):
            runs_of(of(spec, DropoutSpec, amount="1"), [rate], 1)
    assert of(spec, DropoutSpec, amount="1", rate="0.1").name == "dropout 0.1, seed 0"
