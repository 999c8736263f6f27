"""What a model reads and predicts: next, earlier, hidden and replaced tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from accelerate import Accelerator
from torch import Generator, Tensor
from torch.nn import functional as F

from posembed.calls import named
from posembed.errors import ArgumentError, DataError
from posembed.lab.data.text import Corpus
from posembed.lab.runs import train
from posembed.lab.tasks.language import InitialValues
from posembed.lab.tasks.objectives import IGNORED, OBJECTIVES, choose
from posembed.lab.tasks.text_specs import ByTaskSpec, LengthSpec
from together import together
from tolerance import assert_close, close

VOCABULARY = 50
RANDOM = [name for name, objective in OBJECTIVES.items() if objective.draws > 1]


def examples(name: str, rows: int = 3, length: int = 20, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids (B, L + 1), inputs (B, L) and targets (B, L)."""
    ids = torch.randint(VOCABULARY, (rows, length + 1), generator=Generator().manual_seed(99))
    return ids, *OBJECTIVES[name].examples(ids, VOCABULARY, Generator().manual_seed(seed))


@pytest.fixture
def spec(spec: LengthSpec) -> ByTaskSpec:
    known = {field.name for field in dataclasses.fields(ByTaskSpec)}
    settings = {name: value for name, value in vars(spec).items() if name in known}
    return ByTaskSpec(**settings | {"question": "by-task", "encoding": "learned", "init": "normal-0.02"})


@together("length", [1, 2, 3, 7, 64])
@together("name", OBJECTIVES)
def test_examples_have_one_shape_and_ids_that_the_model_has(name: str, length: int) -> None:
    ids, inputs, targets = examples(name, length=length)
    assert inputs.shape == targets.shape == (3, length)
    for some in (inputs, targets[targets != IGNORED]):
        assert some.dtype == torch.int64
        assert 0 <= int(some.min()) <= int(some.max()) < VOCABULARY + OBJECTIVES[name].extra_ids
    assert ids.shape == (3, length + 1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_examples_depend_on_the_generator_alone(name: str) -> None:
    first, again, other = examples(name), examples(name), examples(name, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[1], other[1]) == (name not in RANDOM)


def test_the_order_of_the_text() -> None:
    ids, inputs, targets = examples("causal")
    assert all(targets[b, i] == ids[b, i + 1] and inputs[b, i] == ids[b, i] for b in range(3) for i in range(20))
    ids, inputs, targets = examples("backward")
    assert all(targets[b, i] == ids[b, 19 - i] and inputs[b, i] == ids[b, 20 - i] for b in range(3) for i in range(20))


@pytest.mark.parametrize("length", [1, 3, 10, 33, 512])
def test_every_row_has_the_same_number_of_chosen_tokens(length: int) -> None:
    chosen = choose(torch.zeros(200, length), Generator().manual_seed(0))
    assert set(chosen.sum(dim=1).tolist()) == {max(round(0.15 * length), 1)}
    shares = chosen.double().mean(dim=0)
    assert (shares - shares.mean()).abs().max() < 0.15  # every place alike


def test_hidden_tokens_are_masked_random_or_kept_as_in_bert() -> None:
    ids, inputs, targets = examples("masked", rows=400, length=100)
    text, chosen = ids[:, :-1], targets != IGNORED
    assert torch.equal(inputs[~chosen], text[~chosen])
    assert torch.equal(targets[chosen], text[chosen])
    seen, there = inputs[chosen], text[chosen]
    shares = [(seen == VOCABULARY), (seen != there) & (seen < VOCABULARY), (seen == there)]
    found = [share.double().mean().item() for share in shares]
    by_chance = 0.1 / VOCABULARY  # a random token may be the token of the text
    assert found == pytest.approx([0.8, 0.1 - by_chance, 0.1 + by_chance], abs=4 * (0.16 / 6000) ** 0.5)


def test_replaced_tokens_are_the_ones_that_differ() -> None:
    ids, inputs, targets = examples("replaced", rows=50)
    for b, i in torch.cartesian_prod(torch.arange(50), torch.arange(20)).tolist():
        assert targets[b, i] == VOCABULARY + (inputs[b, i] != ids[b, i])
    assert 0.1 < (targets == VOCABULARY + 1).double().mean() <= 0.15


def test_too_little_text_is_refused(spec: ByTaskSpec, corpus: Corpus) -> None:
    with pytest.raises(DataError, match=r"the text to train on has .* give more text, or a shorter length"):
        InitialValues(corpus).check(dataclasses.replace(spec, task="causal", train_length=len(corpus.train)))


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'mask' \(did you mean masked\?\); choose from causal, backward, masked"):
        named("objective", "mask", OBJECTIVES)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_only_a_causal_model_ignores_what_comes_later(spec: ByTaskSpec, corpus: Corpus, name: str) -> None:
    model = InitialValues(corpus).build(dataclasses.replace(spec, task=name)).double().eval()
    ids = torch.randint(256, (2, 16))
    changed = ids.clone()
    changed[:, 9:] = (ids[:, 9:] + 1) % 256
    same = close(model(ids)[:, :9], model(changed)[:, :9])
    assert same == OBJECTIVES[name].causal


@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if objective.causal])
def test_attention_is_measured_on_text_in_the_order_of_training(spec: ByTaskSpec, corpus: Corpus, name: str) -> None:
    length = spec.train_length
    counted = dataclasses.replace(corpus, held_out=torch.arange(len(corpus.held_out)).clamp(max=255))
    task, seen = InitialValues(counted), []
    model = task.build(dataclasses.replace(spec, task=name)).eval()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    assert task.attention(dataclasses.replace(spec, task=name), model, torch.device("cpu")) is not None
    first = torch.arange(length) if name == "causal" else torch.arange(length, 0, -1)
    assert torch.equal(torch.cat(seen)[0], first)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_the_mean_over_predicted_tokens(spec: ByTaskSpec, corpus: Corpus, name: str) -> None:
    spec, task = dataclasses.replace(spec, task=name), InitialValues(corpus)
    model = task.build(spec).eval()
    inputs, targets, position_ids = task.draw(spec, model, 3)
    logits = model(inputs, position_ids).double().log_softmax(dim=-1)
    places = [(b, i) for b in range(spec.batch) for i in range(spec.train_length) if targets[b, i] != IGNORED]
    plain = -sum(logits[b, i, targets[b, i]] for b, i in places) / len(places)
    assert_close(task.loss(model, inputs, targets, position_ids).double(), plain, dtype=torch.float32)


def test_the_held_out_loss_has_the_same_masks_in_every_run(
    spec: ByTaskSpec, corpus: Corpus, accelerator: Accelerator
) -> None:
    spec, task = dataclasses.replace(spec, task="masked"), InitialValues(corpus)
    seen: list[Tensor] = []

    class Watched(torch.nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            seen.append(ids)
            return torch.zeros(*ids.shape, 257)

    for seed in (0, 1):
        found = task.held_out_loss(dataclasses.replace(spec, seed=seed), Watched(), accelerator)
        assert_close(found, torch.tensor(257.0).log().item(), dtype=torch.float32)
    assert torch.equal(*seen)
    assert len(seen[0]) == 4 * (spec.test_tokens // spec.train_length)


def test_a_masked_run_learns_and_keeps_the_gradient_norms(
    spec: ByTaskSpec, corpus: Corpus, accelerator: Accelerator
) -> None:
    spec, task = dataclasses.replace(spec, task="masked", steps=15, dropout=0.0), InitialValues(corpus)
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.losses[-1][1] < result.losses[0][1]
    assert [step for step, _ in result.gradient_norms] == list(range(1, 16))
    model = task.build(spec).train()
    inputs, targets, position_ids = task.draw(spec, model, 0)
    logits = model(inputs, position_ids).flatten(0, 1)
    kept = targets.flatten() != IGNORED
    F.cross_entropy(logits[kept], targets.flatten()[kept]).backward()
    norm = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None) ** 0.5
    assert_close(result.gradient_norms[0][1], float(norm), dtype=torch.float32)
    assert result.measurements is not None


def test_drawn_lengths_need_a_model_that_does_not_see_padding(spec: ByTaskSpec, corpus: Corpus) -> None:
    short = dataclasses.replace(spec, train_lengths="short")
    for name in OBJECTIVES:
        if name != "causal":
            with pytest.raises(ArgumentError, match=f"train_lengths short needs a causal model.* is {name}"):
                train.check(dataclasses.replace(short, task=name), InitialValues(corpus))
    train.check(dataclasses.replace(short, task="causal"), InitialValues(corpus))
