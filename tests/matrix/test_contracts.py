"""Which of the four contracts of ``forward`` each encoding follows (layers/base.py), and one signature for inputs."""

from __future__ import annotations

import inspect

import pytest
import torch

import posembed
from every_layer import HEADS, LAYERS, SMALL, Layer
from posembed import PositionEncoding, inputs
from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, RotationEncoding
from posembed.layers.score_bias import ScoreBias
from together import together


def of(contract: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in LAYERS.items() if c.contract == contract])


def test_every_encoding_has_a_contract() -> None:
    contracts = {"input", "rotation", "bias", "both"}
    for name, case in LAYERS.items():
        layer = case.make(SMALL)
        encoding = getattr(layer, "encoding", layer)
        assert (case.contract in contracts) == isinstance(encoding, PositionEncoding), name


def parameters(layer: object) -> list[str]:
    """The names of forward's arguments."""
    return list(inspect.signature(layer.forward).parameters)  # type: ignore[attr-defined]


@of("input")
def test_input(case: Layer) -> None:
    layer, (x,) = case.make(SMALL).eval(), case.arguments(SMALL)
    ids = torch.arange(x.shape[1])
    assert isinstance(layer, (InputEncoding, posembed.layers.NoPosition))
    assert parameters(layer)[:3] == ["x", "position_ids", "offset"]
    assert layer(x).shape == x.shape
    assert torch.equal(layer(x, ids), layer(x))
    assert torch.equal(layer.at_input(x, ids), layer(x, ids))


@of("rotation")
def test_rotation(case: Layer) -> None:
    layer, (q, k) = case.make(SMALL).eval(), case.arguments(SMALL)
    ids = torch.arange(q.shape[2])
    assert isinstance(layer, RotationEncoding)
    assert parameters(layer) == ["q", "k", "position_ids", "offset", "text_length"]
    turned_q, turned_k = layer(q, k)
    assert turned_q.shape[:3] == q.shape[:3]
    assert turned_q.shape[-1] == turned_k.shape[-1]
    for result in (layer(q, k, ids), layer.at_queries_keys(q, k, ids, ids)):
        assert torch.equal(result[0], turned_q)
        assert torch.equal(result[1], turned_k)


@of("rotation")
def test_a_text_length_is_checked_and_changes_only_scaled_angles(case: Layer) -> None:
    layer, (q, k) = case.make(SMALL).eval(), case.arguments(SMALL)
    assert torch.equal(layer(q, k, text_length=1000)[0], layer(q, k)[0])
    for wrong in (0, 2.5, torch.ones(2), torch.ones(7, dtype=torch.int64), torch.ones(2, 9, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match="text_length"):
            layer(q, k, text_length=wrong)


@of("bias")
def test_bias(case: Layer) -> None:
    layer = case.make(SMALL)
    assert isinstance(layer, ScoreBias)
    assert parameters(layer)[:2] == ["q_length", "k_length"]
    ids = torch.arange(9)
    assert layer(4, 9).shape == (HEADS, 4, 9)
    assert torch.equal(layer(4, 9), layer.at_scores(ids[5:], ids))
    assert torch.equal(layer(9), layer(9, 9))


@of("both")
def test_both(case: Layer) -> None:
    encoding = case.make(SMALL).encoding
    with pytest.raises(ArgumentError, match="before_queries_keys, at_queries_keys and, on the result of in_layer"):
        encoding(5)


@of("text")
def test_text_inputs_share_one_signature(case: Layer) -> None:
    layer = case.make(SMALL)
    assert isinstance(layer, inputs.TextInput)
    assert parameters(layer) == ["token_ids", "position_ids", "offset", "mask", "token_type_ids"]


@together("name", [n for n, c in LAYERS.items() if c.contract not in ("text", "images")])
def test_the_representation_is_the_constructors_call(name: str) -> None:
    layer = LAYERS[name].make(SMALL)
    layer = getattr(layer, "encoding", layer)
    again = eval(
        repr(layer), {n: getattr(room, n) for room in (posembed.layers, posembed.tables) for n in room.__all__}
    )
    assert repr(again) == repr(layer)
