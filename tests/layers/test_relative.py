from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import ArgumentError
from posembed.layers import T5Bias
from posembed.layers.relative import relative_buckets
from together import together


def oracle(relative: int, buckets: int, max_distance: int, bidirectional: bool) -> set[int]:
    """The bucket in exact arithmetic; both neighbours of an edge, where powers of two stand."""
    start = 0
    if bidirectional:
        buckets //= 2
        start = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return {start + distance}
    place = exact + math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    near = {math.floor(place - 1e-5), math.floor(place + 1e-5)}
    return {start + min(bucket, buckets - 1) for bucket in near}


@settings(max_examples=100)
@given(st.integers(-5000, 5000), st.sampled_from([8, 20, 32, 64]), st.sampled_from([40, 128, 1000]), st.booleans())
def test_buckets_are_the_formula(relative: int, buckets: int, max_distance: int, bidirectional: bool) -> None:
    bucket = relative_buckets(
        torch.tensor(relative), buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    assert bucket.item() in oracle(relative, buckets, max_distance, bidirectional)


def test_known_buckets() -> None:
    both = {0: 0, -1: 1, 1: 17, -8: 8, -12: 9, -17: 10, -33: 12, -65: 14, -128: 15, 128: 31}  # a step inside each
    assert relative_buckets(torch.tensor(list(both))).tolist() == list(both.values())
    causal = {5: 0, 0: 0, -1: 1, -15: 15, -16: 16, -32: 21, -64: 26, -128: 31, -100_000: 31}
    assert relative_buckets(torch.tensor(list(causal)), bidirectional=False).tolist() == list(causal.values())


@together("bidirectional", [True, False])
@together(("buckets", "max_distance"), [(32, 128), (64, 128), (32, 256), (8, 20)])
def test_buckets_are_transformers_bit_for_bit(bidirectional: bool, buckets: int, max_distance: int) -> None:
    """At every distance up to 3,000 on either side, the powers of two among them."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-3000, 3001)
    theirs = t5.T5Attention._relative_position_bucket(relative, bidirectional, buckets, max_distance)
    ours = relative_buckets(relative, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("decoder", [True, False])
def test_the_bias_is_transformers_with_its_own_weights(decoder: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=decoder)
    attention = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(4, bidirectional=not decoder)
    ours.load_state_dict({"bucket_weight": attention.relative_attention_bias.weight})
    assert torch.equal(ours(300), attention.compute_bias(300, 300)[0])
    assert torch.equal(ours(3, 200), attention.compute_bias(200, 200)[0, :, 197:])


def test_positions_decide_and_not_indices() -> None:
    layer = T5Bias(2, std=1.0)
    q, k = torch.tensor([[0, 7, 1000], [3, 3, 900]]), torch.tensor([[4, 0], [5000, 3]])
    bias = layer.at_scores(q, k)
    assert bias.shape == (2, 2, 3, 2)
    for b, h, i, j in np.ndindex(2, 2, 3, 2):
        bucket = relative_buckets(k[b, j] - q[b, i])
        assert bias[b, h, i, j] == layer.bucket_weight[bucket, h]


def test_gradients_count_how_often_a_bucket_was_read() -> None:
    layer = T5Bias(3, bidirectional=False)
    layer(10).sum().backward()
    assert layer.bucket_weight.grad is not None
    expected = torch.zeros(32)
    expected[0], expected[1:10] = 45 + 10, torch.arange(9, 0, -1)
    assert torch.equal(layer.bucket_weight.grad, expected.unsqueeze(-1).expand(32, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": 2}, "even and at least 4, got 2"),
        ({"buckets": 9}, "even and at least 4, got 9"),
        ({"buckets": 1, "bidirectional": False}, "at least 2, got 1"),
        ({"max_distance": 8}, "above the 8 distances that have a bucket of their own, got 8"),
    ],
)
def test_bad_arguments(options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        T5Bias(4, **options)
