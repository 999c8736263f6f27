from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.layers import Fire
from posembed.layers.fire import fire_interpolation
from tolerance import assert_close


def oracle(layer: Fire, i: int, j: int) -> np.ndarray:
    """The authors' formula for one pair, float64 (H,): |c|, |L|, a normalizer of at least psi(L), epsilon."""
    c, factor = (abs(p.detach().double().item()) for p in (layer.c, layer.threshold_factor))
    normalizer = np.log(c * max(i, factor * layer.initial_threshold) + 1) + 1e-6
    x = np.log(c * abs(i - j) + 1) / normalizer
    w1, b1, w2, b2 = (
        p.detach().double().numpy()
        for p in (layer.hidden_weight, layer.hidden_bias, layer.output_weight, layer.output_bias)
    )
    return w2 @ np.maximum(w1 * x + b1, 0) + b2


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.floats(0.01, 3),
    st.floats(1, 900),
)
def test_it_is_the_authors_formula(heads: int, width: int, i: int, j: int, c: float, threshold: float) -> None:
    layer = Fire(heads, width=width, c=c, threshold=threshold)
    with torch.no_grad():
        layer.threshold_factor.fill_(-1.3)
    bias = layer.at_scores(torch.tensor([i]), torch.tensor([j]))
    assert_close(bias[:, 0, 0].detach().numpy(), oracle(layer, i, j), dtype=torch.float32)


def test_what_it_reads_stays_in_zero_to_one_at_any_length() -> None:
    layer = Fire(2, threshold=16.0)
    positions = torch.arange(3000)
    x = fire_interpolation(*layer.c_and_threshold(), positions[-1:].unsqueeze(-1), positions)
    assert x.min() >= 0
    assert x.max() <= 1


def test_autocast_does_not_blur_positions() -> None:
    layer = Fire(2, threshold=16.0)
    expected = layer(300)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(300), expected)
