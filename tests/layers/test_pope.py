from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import ArgumentError
from posembed.layers import PolarEmbedding
from posembed.layers.pope import polar_frequencies
from tolerance import assert_close


def oracle(q: np.ndarray, k: np.ndarray, t: int, s: int, delta: np.ndarray, base: float = 10000.0) -> float:
    """The score of one query and key (d,) before the division by sqrt(d), in float64."""
    theta = base ** (-np.arange(len(q)) / len(q))
    magnitudes = np.log1p(np.exp(q)) * np.log1p(np.exp(k))
    return float((magnitudes * np.cos((s - t) * theta + np.clip(delta, -2 * np.pi, 0))).sum())


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(0, 2000), st.integers(0, 2000))
def test_scaled_dot_products_are_the_papers_scores(d: int, t: int, s: int) -> None:
    layer = PolarEmbedding(head_dim=d, heads=1, delta_init="uniform")
    q, k = torch.randn(2, 1, 1, 1, d, dtype=torch.float64)
    wide_q, wide_k = layer.at_queries_keys(q, k, torch.tensor([t]), torch.tensor([s]))
    assert wide_q.shape == wide_k.shape == (1, 1, 1, 2 * d)
    score = (wide_q * wide_k).sum().item() / math.sqrt(2 * d)
    delta = layer.delta[0].detach().double().numpy()
    expected = oracle(q.flatten().numpy(), k.flatten().numpy(), t, s, delta) / math.sqrt(d)
    size = q.norm().item() * k.norm().item() / math.sqrt(d)
    assert_close(score, float(expected), dtype=torch.float32, scale=max(s, t, 1) * size, terms=1)  # the largest angle


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # x-transformers scripts a function as it is imported
def test_it_is_x_transformers() -> None:
    import x_transformers.x_transformers as peer

    theirs = peer.PolarEmbedding(8, 3)
    ours = PolarEmbedding(head_dim=8, heads=3)
    with torch.no_grad():
        theirs.learned_bias.uniform_(-7.0, 1.0)  # some out of range: both clamp
        ours.delta.copy_(theirs.learned_bias.squeeze(1))
    q, k = torch.randn(2, 2, 3, 50, 8)
    frequencies, bias = theirs(torch.arange(50))
    their_q, their_k = peer.apply_polar_pos_emb(q, frequencies), peer.apply_polar_pos_emb(k, frequencies + bias)
    our_q, our_k = ours(q, k)
    assert_close(our_q / math.sqrt(2), their_q)
    assert_close(our_k, their_k)


def test_frequencies() -> None:
    expected = 10000.0 ** (-np.arange(6) / 6)
    assert_close(polar_frequencies(6).numpy(), expected, dtype=torch.float32, relative=True)


def test_scores_depend_on_distance_alone() -> None:
    layer = PolarEmbedding(head_dim=8, heads=2, delta_init="uniform")
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64)

    def scores(shift: int) -> torch.Tensor:
        a, b = layer(q, k, offset=shift)
        return a @ b.transpose(-1, -2)

    assert_close(scores(0), scores(100), dtype=torch.float32, scale=105 * q.norm() * k.norm())  # the largest angle


def test_attention_takes_the_wide_heads() -> None:
    q, k, v = torch.randn(3, 2, 3, 7, 8)
    wide_q, wide_k = PolarEmbedding(head_dim=8, heads=3)(q, k)
    y = torch.nn.functional.scaled_dot_product_attention(wide_q, wide_k, v, is_causal=True)
    assert y.shape == v.shape


def test_gradients_reach_queries_keys_and_delta() -> None:
    layer = PolarEmbedding(head_dim=3, heads=2, delta_init="uniform").double()
    q, k = torch.randn(2, 1, 2, 4, 3, dtype=torch.float64)
    inputs = q.requires_grad_(), k.requires_grad_(), layer.delta
    # Angles are float32, so that delta's gradient is float32's.
    assert torch.autograd.gradcheck(lambda q, k, _: layer(q, k), inputs, eps=1e-3, atol=1e-3)


def test_zero_delta_learns() -> None:
    layer = PolarEmbedding(head_dim=4, heads=2)
    a, b = layer(*torch.randn(2, 1, 2, 6, 4))
    (a @ b.transpose(-1, -2)).tril().sum().backward()
    assert layer.delta.grad is not None
    assert (layer.delta.grad != 0).all()


def test_bfloat16_models_keep_positions_apart() -> None:
    layer = PolarEmbedding(head_dim=8, heads=1).to(torch.bfloat16)
    q = torch.ones(1, 1, 300, 8, dtype=torch.bfloat16)
    expected, _ = PolarEmbedding(head_dim=8, heads=1)(q.float(), q.float())
    assert_close(layer(q, q)[0].float(), expected, dtype=torch.bfloat16)
    assert layer(q, q)[0].dtype == torch.bfloat16
    assert len(torch.unique(layer(q, q)[0][0, 0, 250:300], dim=0)) == 50


def test_meta_device_and_drawing_anew() -> None:
    with torch.device("meta"):
        layer = PolarEmbedding(head_dim=4, heads=2, delta_init="uniform")
    layer.to_empty(device="cpu").reset_parameters()
    assert -2 * math.pi <= layer.delta.min()
    assert layer.delta.max() <= 0
    assert repr(layer) == "PolarEmbedding(head_dim=4, heads=2, base=10000.0, delta_init='uniform')"


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="delta_init: expected one of zero, uniform; got 'one'"):
        PolarEmbedding(head_dim=4, heads=2, delta_init="one")
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ArgumentError, match=r"\(B, H=3, L, d\)"):
        PolarEmbedding(head_dim=4, heads=3)(q, q)
