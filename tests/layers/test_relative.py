from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.layers import T5Bias
from posembed.tables.buckets import bucket_of
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
    bucket = bucket_of(torch.tensor(relative), buckets, farthest=max_distance, both=bidirectional)
    assert bucket.item() in oracle(relative, buckets, max_distance, bidirectional)


def test_known_buckets() -> None:
    both = {0: 0, -1: 1, 1: 17, -8: 8, -12: 9, -17: 10, -33: 12, -65: 14, -128: 15, 128: 31}  # a step inside each
    assert bucket_of(torch.tensor(list(both)), 32).tolist() == list(both.values())
    causal = {5: 0, 0: 0, -1: 1, -15: 15, -16: 16, -32: 21, -64: 26, -128: 31, -100_000: 31}
    assert bucket_of(torch.tensor(list(causal)), 32, both=False).tolist() == list(causal.values())


@together("bidirectional", [True, False])
@together(("buckets", "max_distance"), [(32, 128), (64, 128), (32, 256), (8, 20)])
def test_buckets_are_transformers_bit_for_bit(bidirectional: bool, buckets: int, max_distance: int) -> None:
    """At every distance up to 3,000 on either side, the powers of two among them."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-3000, 3001)
    theirs = t5.T5Attention._relative_position_bucket(relative, bidirectional, buckets, max_distance)
    ours = bucket_of(relative, buckets, farthest=max_distance, both=bidirectional)
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
