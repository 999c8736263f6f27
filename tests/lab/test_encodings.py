"""Every encoding of the lab trains, and is measured beyond its training length."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from posembed import ArgumentError, DataError
from posembed.lab import measure
from posembed.lab.data.text import Corpus
from posembed.lab.runs import train
from posembed.lab.runs.results import result_from_json
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.task import build_encoding
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.nn import Sizes, encoding_by_name

BIASES = ["t5", "kerple-log", "kerple-power", "fire"]
AT_THE_END = ["learned-concat", "tupe-r"]
"""These have no position past the training length."""
SCALED = ["rope-linear", "rope-ntk", "rope-yarn", "rope-llama3"]


@pytest.mark.parametrize("name", [*BIASES, "pope", *SCALED])
def test_it_learns_and_has_a_loss_at_four_times_its_length(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, name: str
) -> None:
    spec = dataclasses.replace(spec, encoding=name, steps=30, dropout=0.0, test_lengths=(16, 64))
    before = build_encoding(spec).state_dict()
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.losses[-1][1] < 0.8 * result.losses[0][1]
    assert result.measurements is not None
    assert all(loss is not None and math.isfinite(loss) for loss in result.measurements.same_tokens.values())
    assert result.position_parameters == sum(value.numel() for value in before.values())


def test_scaled_rope_trains_as_plain_rope_does(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator
) -> None:
    """Up to rounding the run is the same; what differs is what comes after the training length."""
    spec = dataclasses.replace(spec, dropout=0.0, test_lengths=(16, 64))
    plain = train.run(dataclasses.replace(spec, encoding="rope"), task, accelerator)
    assert plain.measurements is not None
    factors = tuple(1.0 + pair for pair in range(spec.width // spec.heads // 2))
    for name in [*SCALED, "rope-longrope"]:
        given = factors if name == "rope-longrope" else ()
        scaled = train.run(dataclasses.replace(spec, encoding=name, rope_factors=given), task, accelerator)
        assert scaled.measurements is not None
        assert scaled.measurements.same_tokens[16] == pytest.approx(plain.measurements.same_tokens[16], abs=1e-3)
        assert scaled.measurements.same_tokens[64] != plain.measurements.same_tokens[64]


def numbered(vocabulary: int) -> LanguageModelling:
    """A text of 20,000 tokens that counts up."""
    tokens = torch.arange(20_000) % vocabulary
    return LanguageModelling(Corpus(tokens, tokens, None, vocabulary, description="numbers", sha256=""))


def test_longrope_s_factors_are_searched_for_after_training(spec: LengthSpec, accelerator: Accelerator) -> None:
    """Training is plain RoPE's, and a second run finds the same."""
    task = numbered(50)
    spec = dataclasses.replace(spec, dropout=0.0, test_lengths=(16, 40), search_budget=8, steps=3, test_tokens=40)
    plain, searching = (dataclasses.replace(spec, encoding=name) for name in ("rope", "rope-longrope"))
    results = [train.run(each, task, accelerator) for each in (plain, searching, searching)]
    assert results[1].measurements == results[2].measurements
    before, after = (result.measurements for result in results[:2])
    assert before is not None
    assert after is not None
    assert before.searched is None
    assert after.same_tokens[16] == pytest.approx(before.same_tokens[16], abs=1e-3)
    found = after.searched
    assert found is not None
    assert found.evaluations == 8
    assert found.loss <= min(found.starts.values())
    assert len(found.factors) == spec.width // spec.heads // 2
    assert result_from_json(results[1].to_json(), LengthSpec) == results[1]
    # With the found factors given, nothing is searched for. (One more: initial tokens cannot be given.)
    given = dataclasses.replace(searching, rope_factors=found.factors, search_budget=None)
    again = train.run(given, task, accelerator).measurements
    assert again is not None
    assert again.searched is None
    if not found.initial_tokens:
        assert again.same_tokens == after.same_tokens


def test_the_search_reads_what_no_measurement_reads(spec: LengthSpec) -> None:
    tokens = torch.arange(20_000)
    spec = dataclasses.replace(spec, encoding="rope-longrope+window", test_lengths=(16, 64))
    searched, read = numbered(20_000).search_text(spec), []

    def loss(ids: torch.Tensor) -> torch.Tensor:
        read.append(ids)
        return torch.zeros(len(ids), ids.size(1) - 1, dtype=torch.float64)

    measure.everything(loss, tokens, train_length=spec.train_length, test_lengths=spec.test_lengths,
                       tokens=spec.test_tokens, held_out_bytes=None)  # fmt: skip
    assert searched.shape == (8, 65)
    assert (searched.diff() == 1).all()
    assert len(searched.unique()) == searched.numel()
    assert not torch.isin(searched, torch.cat([ids.flatten() for ids in read])).any()
    assert searched[-1, 0] - searched[0, 0] > 15_000


def test_no_text_for_the_search_is_said_before_anything_trains(spec: LengthSpec, task: LanguageModelling) -> None:
    spec = dataclasses.replace(spec, encoding="rope-longrope", test_tokens=10**6, test_lengths=(16, 64))
    with pytest.raises(DataError, match=r"needs 65 tokens in a row .* shorter --test-lengths, or --rope-factors"):
        train.check(spec, task)
    train.check(dataclasses.replace(spec, rope_factors=(1.0,) * 4), task)
    train.check(dataclasses.replace(spec, encoding="rope"), task)


@pytest.mark.parametrize("head_dim", [1, 3, 5])
@pytest.mark.parametrize("sizes", [{}, {"longest": 64}, {"longest": 64, "rope_factors": (1.0, 2.0)}])
def test_an_odd_head_gives_longrope_the_error_of_rope(head_dim: int, sizes: dict[str, Any]) -> None:
    for name in ("rope", "rope-longrope"):
        with pytest.raises(ArgumentError, match=f"head_dim must be even and positive, got {head_dim}"):
            encoding_by_name(name, Sizes(dim=3 * head_dim, heads=3, max_len=16, **sizes))


def test_longrope_for_texts_shorter_than_the_training_texts() -> None:
    encoding = encoding_by_name("rope-longrope", Sizes(dim=8, heads=2, max_len=16, longest=4))
    plain = encoding_by_name("rope", Sizes(dim=8, heads=2))
    for ours, theirs in zip(*(each.cos_sin(torch.arange(16)) for each in (encoding, plain)), strict=True):  # type: ignore[operator]
        assert torch.equal(ours, theirs)


def test_longrope_needs_factors_where_nothing_searches_for_them(spec: LengthSpec) -> None:
    spec = dataclasses.replace(spec, encoding="rope-longrope", test_lengths=(16, 64))
    with pytest.raises(ArgumentError, match=r"give rope_factors, \d+ numbers, which posembed\.search_longrope_factors"):
        build_encoding(spec)
    with pytest.raises(ArgumentError, match="got 1 factors"):
        build_encoding(dataclasses.replace(spec, rope_factors=(2.0,)))
    build_encoding(dataclasses.replace(spec, test_lengths=(16,)))  # nothing is longer, and nothing is scaled


def test_settings_that_ask_for_nothing_do_not_name_a_run(spec: LengthSpec) -> None:
    """So that runs made before there was such a setting are found."""
    assert not {"rope_factors", "search_budget"} & set(spec.shared_settings())
    assert spec.key() != dataclasses.replace(spec, rope_factors=(2.0,)).key()


@pytest.mark.parametrize("name", AT_THE_END)
def test_it_learns_and_ends_at_its_length(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, name: str
) -> None:
    spec = dataclasses.replace(spec, encoding=name, steps=30, dropout=0.0, test_lengths=(16, 64))
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.losses[-1][1] < 0.8 * result.losses[0][1]
    assert result.measurements is not None
    assert result.measurements.same_tokens[16] is not None
    assert result.measurements.same_tokens[64] is None


@pytest.mark.parametrize("name", [*BIASES, *AT_THE_END, "pope"])
def test_what_it_learns_is_trained_without_weight_decay(task: LanguageModelling, spec: LengthSpec, name: str) -> None:
    model = task.build(dataclasses.replace(spec, encoding=name))
    decayed, others = (group["params"] for group in train.make_optimizer(spec, model).param_groups)
    parameters = list(model.encoding.parameters())
    assert parameters
    assert all(any(p is other for other in others) for p in parameters)
    assert not any(p is other for p in parameters for other in decayed)
    model(torch.randint(50, (2, 16))).square().mean().backward()
    assert all(p.grad is not None for p in parameters)
