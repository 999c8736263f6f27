"""TUPE against the paper's formula, written out pair by pair in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posembed.errors import ArgumentError, PositionError
from posembed.layers import T5Bias, Tupe
from posembed.nn import Attention, Decoder, Encoder
from tolerance import assert_close


def scrambled(layer: torch.nn.Module) -> torch.nn.Module:
    for parameter in layer.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return layer.double()


def tupe(**changed: object) -> Tupe:
    return scrambled(Tupe(**({"max_len": 12, "dim": 8, "heads": 2} | changed)))  # type: ignore[arg-type,return-value]


def by_pairs(layer: Tupe, n: int) -> Tensor:
    """(H, n, n): equations of sections 3.1 and 3.2, with the authors' layer norm and biases."""
    d = layer.dim // layer.heads
    bias = torch.zeros(layer.heads, n, n, dtype=torch.float64)
    p = torch.nn.functional.layer_norm(layer.weight, (layer.dim,), layer.norm_weight, layer.norm_bias)
    u_q, u_k = layer.projection_weight[: layer.dim], layer.projection_weight[layer.dim :]
    c_q, c_k = layer.projection_bias[: layer.dim], layer.projection_bias[layer.dim :]
    for h in range(layer.heads):
        head = slice(h * d, (h + 1) * d)
        for i in range(n):
            for j in range(n):
                q, k = u_q[head] @ p[i] + c_q[head], u_k[head] @ p[j] + c_k[head]
                bias[h, i, j] = q @ k / math.sqrt(2 * d)
                if layer.relative is not None:
                    bias[h, i, j] += layer.relative.at_scores(torch.tensor([i]), torch.tensor([j]))[h, 0, 0]
                if layer.first_weight is not None and (i == 0 or j == 0):
                    bias[h, i, j] = layer.first_weight[0 if i == 0 else 1, h]
    return bias


CASES = {"A": {}, "A, reset": {"reset_first": True}, "R": {"relative": T5Bias(2, std=1.0)},
         "R, reset": {"reset_first": True, "relative": T5Bias(2, std=1.0)}}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_paper_s_formula(case: str) -> None:
    """In values and gradients."""
    layer = tupe(**CASES[case])
    ids = torch.arange(9)
    expected, dense = by_pairs(layer, 9), layer.at_scores(ids, ids)
    assert_close(dense, expected)
    one_by_one = torch.cat([layer.at_scores(ids[i : i + 1], ids) for i in range(9)], dim=1)  # as in decoding
    assert_close(one_by_one, expected)
    moved = torch.stack((ids, ids.flip(0)))
    assert_close(layer.at_scores(moved, moved)[1], expected.flip(1, 2))
    parameters = list(layer.parameters())
    for queries in (ids, ids[3:5]):  # the order of the products is another for few queries
        weights, plain = torch.randn(2, len(queries), 9, dtype=torch.float64), by_pairs(layer, 9)[:, queries]
        ours, theirs = (
            torch.autograd.grad((scores * weights).sum(), parameters, materialize_grads=True, allow_unused=True)
            for scores in (layer.at_scores(queries, ids), plain)
        )
        assert_close(ours, theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_a_score_is_the_mean_of_two_kinds_scaled(causal: bool) -> None:
    """softmax((x W_q (x W_k)^T + p U_q (p U_k)^T) / sqrt(2 d)), without products of content and position."""
    layer = tupe()
    attention = Attention(dim=8, heads=2, encoding=layer, causal=causal).double()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in attention.queries_keys_values(x).chunk(3, dim=-1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(2 * 4) + by_pairs(layer, 9)
    if causal:
        scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ attention.output.weight.T
    assert_close(attention(x), y)


def test_position_0_is_seen_from_everywhere_alike() -> None:
    """With the reset: no query prefers [CLS] by its own position, and [CLS] prefers no position."""
    layer = tupe(reset_first=True, relative=T5Bias(2, std=1.0))
    bias = layer.at_scores(torch.arange(9), torch.arange(9))
    assert (bias[:, 0] == bias[:, 0, :1]).all()
    assert (bias[:, 1:, 0] == bias[:, 1:2, 0]).all()
    grad = torch.autograd.grad(bias.sum(), layer.weight)[0]
    assert not grad[0].any()


def test_the_start_has_the_scale_of_the_authors_at_every_width() -> None:
    for dim in (48, 768):
        rows = Tupe(max_len=64, dim=dim, heads=4).projection_weight.std().item() * dim**0.5
        assert rows == pytest.approx(0.02 * 768**0.5, rel=0.1)
    assert Tupe(max_len=64, dim=48, heads=4, std=0.1).projection_weight.std().item() == pytest.approx(0.1, rel=0.1)


def test_what_is_not_possible() -> None:
    for wrong in ({"relative": T5Bias(3)}, {"relative": 1}, {"max_len": 0}, {"dim": 9}, {"std": -1.0}):
        with pytest.raises(ArgumentError):
            tupe(**wrong)
    layer = tupe()
    for ids in (torch.tensor([12]), torch.tensor([-1])):
        for call in (layer.at_scores, layer.score_mod):
            with pytest.raises(PositionError, match="has no row"):
                call(ids, torch.arange(3))
            with pytest.raises(PositionError, match="has no row"):
                call(torch.arange(3), ids)
    windowed, scaled = T5Bias(2), T5Bias(2)
    windowed.window = scaled.log_length = 4
    for more in (windowed, scaled, tupe()):
        with pytest.raises(ArgumentError, match="acts on the scores alone"):  # the rest of it would be ignored
            tupe(relative=more)
    for_decoders = tupe(relative=T5Bias(2, bidirectional=False))
    Decoder(dim=8, heads=2, layers=1, encoding=for_decoders)
    with pytest.raises(ArgumentError, match="causal"):
        Encoder(dim=8, heads=2, layers=1, encoding=for_decoders)


def test_the_bias_stays_in_float32_in_a_narrow_model() -> None:
    layer, ids = Tupe(max_len=300, dim=8, heads=2), torch.arange(300)
    expected = layer.at_scores(ids, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.at_scores(ids, ids), expected)
    assert layer.to(torch.bfloat16).at_scores(ids, ids).dtype == torch.float32


@pytest.mark.parametrize("case", CASES)
def test_score_mod_is_the_dense_bias(case: str) -> None:
    """In values and gradients, for positions (L,) and (B, L)."""
    layer = tupe(**CASES[case])
    parameters = list(layer.parameters())
    for ids in (torch.arange(6), torch.stack((torch.arange(6), torch.arange(6) + 5))):
        dense = layer.at_scores(ids[..., 3:], ids).expand(2, 2, 3, 6)
        change = layer.score_mod(ids[..., 3:], ids)
        pairs = [change(torch.zeros(()), *pair) for pair in torch.cartesian_prod(*map(torch.arange, dense.shape))]
        modded = torch.stack(pairs).view(dense.shape)
        assert_close(modded, dense)
        ours, theirs = (
            torch.autograd.grad(y.sin().sum(), parameters, allow_unused=True, retain_graph=True)
            for y in (modded, dense)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_close(one, other, depth=2)
