from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.layers import PolarEmbedding
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


def test_zero_delta_learns() -> None:
    layer = PolarEmbedding(head_dim=4, heads=2)
    a, b = layer(*torch.randn(2, 1, 2, 6, 4))
    (a @ b.transpose(-1, -2)).tril().sum().backward()
    assert layer.delta.grad is not None
    assert (layer.delta.grad != 0).all()
