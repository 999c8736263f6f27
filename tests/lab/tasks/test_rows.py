"""Measurements by position and by row, against their definitions."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator

from posembed.lab import attention, measure
from posembed.lab.data.text import Corpus
from posembed.lab.model import PositionedModel
from posembed.lab.tasks.row_specs import RowSpec, bands, even_attention, later_increase
from posembed.lab.tasks.rows import MOST_ROWS, TrainedRows, rows_replaced, tokens_replaced
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.nn import Attention
from together import together
from tolerance import assert_close

CPU = torch.device("cpu")


@pytest.fixture
def rows(corpus: Corpus) -> TrainedRows:
    return TrainedRows(corpus)


@pytest.fixture
def row_spec(spec: LengthSpec) -> RowSpec:
    known = {field.name for field in dataclasses.fields(RowSpec)}
    shared = {name: value for name, value in dataclasses.asdict(spec).items() if name in known}
    return RowSpec(
        **{**shared, "question": "rows", "encoding": "learned", "train_lengths": "short", "test_tokens": 320}
    )


def unlike(model: PositionedModel) -> PositionedModel:
    """A model whose rows and heads differ enough to matter."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def measured(rows: TrainedRows, spec: RowSpec, accelerator: Accelerator) -> tuple[PositionedModel, SimpleNamespace]:
    """Returns a model, and what was measured of it before it becomes metrics."""
    model = unlike(rows.build(spec))
    with patch("posembed.lab.tasks.rows.measured_rows") as made:
        rows.measure(spec, model, accelerator)
    return model, SimpleNamespace(**made.call_args.kwargs)


def test_every_number_is_that_of_its_definition(rows: TrainedRows, row_spec: RowSpec, accelerator: Accelerator) -> None:
    model, found = measured(rows, row_spec, accelerator)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    text = measure.windows(rows.corpus.held_out, 16, row_spec.test_tokens)
    some = measure.windows(rows.corpus.held_out, 16, tokens_replaced(row_spec))
    assert_close(
        found.loss, measure.losses(model, text[:, :-1], text[:, 1:], CPU).mean(dim=0).tolist(), dtype=torch.float32
    )
    weight = model.encoding.get_parameter("weight")
    intact = measure.losses(model, some[:, :-1], some[:, 1:], CPU).mean(dim=0)
    assert list(found.text_increase) == list(found.own_increase) == list(found.neighbour_increase) == list(range(16))
    for row in (0, 7, 15):
        for of, other in (
            (found.text_increase, weight.mean(dim=0)),
            (found.neighbour_increase, weight[row - 1 if row == 15 else row + 1]),
        ):
            changed = {**before, "encoding.weight": before["encoding.weight"].clone()}
            changed["encoding.weight"][row] = other.detach()
            model.load_state_dict(changed)
            rounding = {"dtype": torch.float32, "scale": intact.sum()}  # the increase is a difference
            increase = measure.losses(model, some[:, :-1], some[:, 1:], CPU).mean(dim=0) - intact
            model.load_state_dict(before)
            assert_close(of[row], increase.sum().item(), **rounding)
            assert increase[:row].abs().max() == 0 if row else True  # earlier tokens do not see the row
            if of is found.text_increase:
                assert_close(found.own_increase[row], increase[row].item(), **rounding)
                later = later_increase(16, found.text_increase, found.own_increase)[row]
                assert_close(later, None if row == 15 else increase[row + 1 :].mean().item(), **rounding)


def test_the_model_is_as_before_and_other_encodings_have_no_rows(
    rows: TrainedRows, row_spec: RowSpec, accelerator: Accelerator
) -> None:
    model = unlike(rows.build(row_spec))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows.measure(row_spec, model, accelerator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    _, found = measured(rows, dataclasses.replace(row_spec, encoding="rope"), accelerator)
    assert found.text_increase == found.own_increase == found.neighbour_increase == {}


def test_attention_received_is_a_share_of_an_explicit_softmax(
    rows: TrainedRows, row_spec: RowSpec, accelerator: Accelerator
) -> None:
    model, found = measured(rows, row_spec, accelerator)
    assert_close(sum(found.attention), 1, dtype=torch.float32)
    ids = measure.windows(rows.corpus.held_out, 16, tokens_replaced(row_spec))[:, :-1]
    weights: list[torch.Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, x, k: weights.append(layer.weights(*x, positions=k["positions"])), with_kwargs=True
        )
        for layer in layers
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    expected = torch.stack(weights).double().mean(dim=(0, 1, 2, 3))
    assert_close(found.attention, expected.tolist(), dtype=torch.float32)
    even = torch.ones(16, 16).tril() / torch.arange(1, 17)[:, None]
    share = even.double().mean(dim=0)
    assert_close(
        [found.attention[p] / even_attention(p, 16) for p in range(16)],
        (expected / share).tolist(),
        dtype=torch.float32,
    )
    with pytest.raises(IndexError):  # the hooks are gone even if the model fails
        attention.received(model, torch.full((1, 16), 10_000), CPU)
    assert not any(layer._forward_pre_hooks for layer in layers)


@pytest.mark.parametrize("name", ["full", "uniform", "short"])
def test_times_trained_are_those_of_the_batches(name: str, rows: TrainedRows, row_spec: RowSpec) -> None:
    spec = dataclasses.replace(row_spec, train_lengths=name, steps=5)
    model = rows.build(spec)
    expected = torch.zeros(16, dtype=torch.int64)
    for step in range(5):
        model.zero_grad()
        ids, targets, positions, *drawn = rows.draw(spec, model, step)
        counts = drawn[0] if drawn else torch.full((spec.batch,), 16)
        assert len(ids) == spec.batch
        for count in counts.tolist():
            expected[:count] += 1
        rows.loss(model, ids, targets, positions, *drawn).backward()
        gradient = model.encoding.get_parameter("weight").grad
        assert gradient is not None
        assert gradient.ne(0).any(dim=1).tolist() == [position < max(counts) for position in range(16)]
    assert rows.times_trained(spec, model) == tuple(expected.tolist())


@pytest.mark.parametrize("length", [1, 5, MOST_ROWS, MOST_ROWS + 1, 100, 1024])
def test_the_rows_replaced_are_spread_from_the_first_to_the_last(length: int) -> None:
    found = rows_replaced(length)
    assert found == sorted(set(found))
    assert (found[0], found[-1], len(found)) == (0, length - 1, min(length, MOST_ROWS))


@together("length", [65, 100, 129, 200, 512, 1000, 1024, 8192])
def test_the_rows_replaced_represent_their_band(length: int) -> None:
    for first, last in bands(length).items():
        found = [row for row in rows_replaced(length) if first <= row <= last]
        # They lie in its middle on average, within the distance of two of them.
        assert abs(sum(found) / len(found) - (first + last) / 2) <= max((last - first + 1) / len(found), 1)
