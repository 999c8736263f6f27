"""The learned table read by distance: what it computes, that nothing ends, and that models use it so."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posembed import PositionEncoding
from posembed.lab.model import Decoder
from posembed.layers import AveragedPositionalEmbedding
from posembed.layers.averaged import FITTED_FROM, DistanceBias, fitted_line
from posembed.nn import Positions, attend
from posembed.nn.attend import FlexBias, flex_bias
from tolerance import assert_close, close


def decoder(rows: int = 8, *, layers: int = 2) -> Decoder:
    torch.manual_seed(0)
    encoding = AveragedPositionalEmbedding(max_len=rows, dim=16, heads=4)
    encoding.weight.data.normal_()
    return Decoder(11, 16, layers=layers, heads=4, encoding=encoding).double().eval()


def test_the_line_is_the_weighted_fit_and_never_rises() -> None:
    falling = torch.randn(3, 30, dtype=torch.float64) - torch.arange(30).log1p()
    intercept, slope = fitted_line(falling)
    distance = np.arange(FITTED_FROM, 30)
    for head in range(3):
        # polyfit weighs residuals, not their squares.
        expected = np.polyfit(np.log1p(distance), falling[head, FITTED_FROM:].numpy(), 1, w=np.sqrt(30 - distance))
        assert_close([slope[head].item(), intercept[head].item()], expected)
    intercept, slope = fitted_line(torch.arange(30.0).expand(2, -1))
    assert not slope.any()
    assert (intercept > 0).all()


def test_near_distances_have_their_means_and_far_ones_the_line() -> None:
    by_distance = torch.randn(2, 10, dtype=torch.float64)
    bias = DistanceBias(by_distance)(25)
    intercept, slope = fitted_line(by_distance)
    for back in range(25):
        expected = by_distance[:, back] if back < 10 else intercept + slope * math.log1p(back)
        assert_close(bias.diagonal(-back, 1, 2)[:, 0], expected)


def test_a_model_adds_each_layer_s_own_bias() -> None:
    model = decoder().train(False)
    encoding = model.encoding
    assert isinstance(encoding, AveragedPositionalEmbedding)
    ids = torch.randint(11, (2, 21))
    x = model.tokens(ids)
    for block in model.body.layers:
        h = block.attention_norm(x)
        q, k, v = (
            t.unflatten(-1, (4, 4)).transpose(1, 2) for t in block.attention.queries_keys_values(h).split(16, -1)
        )
        rows = encoding.weight @ block.attention.queries_keys_values.weight[:32].T
        for_q, for_k = (t.unflatten(-1, (4, 4)).transpose(0, 1) for t in rows.split(16, -1))
        logits = for_q @ for_k.mT / 2
        means = torch.stack([logits.diagonal(-back, 1, 2).mean(-1) for back in range(8)], dim=-1)
        intercept, slope = fitted_line(means)
        scores = q @ k.mT / 2
        for i in range(21):
            for j in range(i + 1):
                back = i - j
                added = means[:, back] if back < 8 else intercept + slope * math.log1p(back)
                scores[:, :3, i, j] += added[:3]  # the last head has no position
            scores[..., i, i + 1 :] = -math.inf
        x = x + block.attention.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    expected = model.body.norm(x) @ model.tokens.weight.T
    assert_close(model(ids), expected)


def test_where_a_text_stands_is_not_seen_and_the_order_is() -> None:
    model = decoder()
    ids = torch.randint(11, (1, 30))
    positions = torch.arange(30)
    assert_close(model(ids, positions), model(ids, positions + 1000))
    assert_close(model(ids), model(ids, positions[None]))
    ids[0, :2] = torch.tensor([1, 2])
    swapped = ids[:, [1, 0, *range(2, 30)]]
    assert not close(model(ids)[:, -1], model(swapped)[:, -1])


class Called(nn.Module):
    def __init__(self, layer: AveragedPositionalEmbedding) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, project: Callable[[Tensor], Tensor], length: int) -> Tensor:
        return self.layer.in_layer(project)(length)


def test_the_table_is_trained_through_every_layer() -> None:
    model = decoder().train()
    model(torch.randint(11, (2, 20))).square().mean().backward()
    gradient = model.encoding.weight.grad
    assert gradient is not None
    assert (gradient.abs().sum(-1) > 0).all()
    layer = AveragedPositionalEmbedding(max_len=9, dim=4, heads=2, heads_without=0).double()
    torch.nn.init.normal_(layer.weight)
    weight = torch.randn(8, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda w, p: torch.func.functional_call(Called(layer), {"layer.weight": w}, (lambda rows: rows @ p.T, 13)),
        (layer.weight, weight.requires_grad_()),
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_in_each_layer_is_the_dense_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    model = decoder().float()
    ids = torch.randint(11, (1, 20))
    made: list[object] = []

    def through_flex(self: Positions, encoding: PositionEncoding, head_dim: int, dense: bool) -> FlexBias | None:
        made.append(flex_bias(encoding, self.q_positions))
        return made[-1]  # type: ignore[return-value]

    with torch.no_grad():
        dense = model(ids)
        monkeypatch.setattr(attend, "compiled", lambda name: getattr(flex_attention, name))
        monkeypatch.setattr(Positions, "_bias_of", through_flex)
        assert_close(model(ids), dense)
    assert [type(bias) for bias in made] == [type(None), FlexBias, FlexBias]  # of all layers, then of each


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_slope_and_no_distance_makes_a_bias_that_is_no_number(dtype: torch.dtype) -> None:
    layer = AveragedPositionalEmbedding(max_len=8, dim=8, heads=2).to(dtype)
    bias = layer.in_layer(lambda rows: rows.repeat(1, 2))
    values = bias.at_scores(torch.tensor([7, 8, 9, 2**40, 2**62]), torch.tensor([0]))
    assert values.isfinite().all()
    assert (values[0, 2:] <= values[0, 1]).all()
