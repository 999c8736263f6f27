"""RoPE's scalings, held to transformers' own and to the formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from posembed import RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.layers import LinearScaling, Llama3Scaling, LongRopeScaling, NTKScaling, YarnScaling
from posembed.layers.rotary import rotary_frequencies
from posembed.layers.rotary_scaling import RotaryScaling
from posembed.positions import from_mask
from together import together
from tolerance import assert_close

ORIGINAL = 2048
SHORT, LONG = tuple(1 + 0.01 * j for j in range(32)), tuple(1 + j * j / 16 for j in range(32))
DYNAMIC = [
    LinearScaling(original_length=64),
    NTKScaling(original_length=64),
    YarnScaling(original_length=64),
    Llama3Scaling(original_length=64),
]

FOLLOWING = [
    LinearScaling(original_length=8),
    NTKScaling(original_length=8),
    YarnScaling(original_length=8),
    Llama3Scaling(original_length=8),
    LongRopeScaling((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), original_length=8, factor=4),
]


def transformers_frequencies(length: int, base: float = 10000.0, **parameters: Any) -> tuple[torch.Tensor, float]:
    """transformers' frequencies and attention factor for heads of width 64."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    config = llama.LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL,
        rope_theta=base,  # as transformers 4 spells them; 5 makes `rope_parameters` of both
        rope_scaling=parameters,
    )
    frequencies, attention = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    return frequencies, attention


def ours(scaling: RotaryScaling, length: int, base: float = 10000.0) -> tuple[torch.Tensor, float]:
    frequencies, attention = scaling.scaled(rotary_frequencies(64, base=base), base=base, length=torch.tensor(length))
    return frequencies, float(attention)


@together("base", [10000.0, 500000.0])
@together("length", [100, ORIGINAL, ORIGINAL + 1, 5 * ORIGINAL])
@together(
    ("scaling", "parameters"),
    [
        (LinearScaling(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
        (NTKScaling(original_length=ORIGINAL), {"rope_type": "dynamic", "factor": 1.0}),
        (
            YarnScaling(ORIGINAL, factor=8.0),
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": ORIGINAL},
        ),
        (
            YarnScaling(ORIGINAL, factor=3.0, beta_fast=16.0, beta_slow=2.0, attention_factor=1.5),
            {
                "rope_type": "yarn",
                "factor": 3.0,
                "original_max_position_embeddings": ORIGINAL,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.5,
            },
        ),
        (
            Llama3Scaling(ORIGINAL, factor=8.0),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            },
        ),
        (
            LongRopeScaling(SHORT, LONG, ORIGINAL, 32.0),
            {
                "rope_type": "longrope",
                "factor": 32.0,
                "short_factor": list(SHORT),
                "long_factor": list(LONG),
                "original_max_position_embeddings": ORIGINAL,
            },
        ),
    ],
)
def test_the_same_frequencies_and_attention_factor_as_transformers(
    scaling: RotaryScaling, parameters: dict[str, Any], length: int, base: float
) -> None:
    expected, expected_attention = transformers_frequencies(length, base, **parameters)
    frequencies, attention = ours(scaling, length, base)
    assert_close(frequencies, expected, relative=True)
    assert_close(attention, expected_attention)


def test_a_fixed_ntk_factor_is_a_larger_base() -> None:
    frequencies, attention = ours(NTKScaling(factor=4.0), 10)
    larger = rotary_frequencies(64, base=10000.0 * 4.0 ** (64 / 62))
    assert_close(frequencies, larger, relative=True)
    assert attention == 1.0


@settings(max_examples=40)
@given(st.integers(1, 40), st.floats(1, 100), st.integers(8, 10_000), st.sampled_from([100.0, 10000.0, 500000.0]))
def test_each_formula_in_float64(pairs: int, factor: float, original: int, base: float) -> None:
    plain = base ** (-np.arange(pairs) / pairs)
    turns = original * plain / (2 * math.pi)
    frequencies = torch.from_numpy(plain)

    def by(scaling: RotaryScaling) -> np.ndarray:
        return scaling.scaled(frequencies, base=base, length=torch.tensor(1))[0].numpy()

    assert_close(by(LinearScaling(factor)), plain / factor, relative=True)

    new_base = base * factor ** (pairs / (pairs - 1)) if pairs > 1 else base
    assert_close(by(NTKScaling(factor)), new_base ** (-np.arange(pairs) / pairs), relative=True)

    kept = np.clip((turns - 1) / (4 - 1), 0, 1)
    expected = kept * plain + (1 - kept) * plain / factor
    assert_close(by(Llama3Scaling(original, factor)), expected, relative=True)

    scaled = by(YarnScaling(original, factor))
    assert (scaled <= plain * (1 + 1e-12)).all()
    assert (scaled >= plain / factor * (1 - 1e-12)).all()
    assert_close(scaled[turns >= 32], plain[turns >= 32], relative=True)
    index, end = np.arange(pairs), pairs * np.log(original / (2 * math.pi)) / np.log(base)  # where it turns once
    slow = index >= max(np.ceil(end), 1)
    assert_close(scaled[slow], plain[slow] / factor, relative=True)


@pytest.mark.parametrize("scaling", DYNAMIC, ids=lambda s: type(s).__name__)
def test_nothing_changes_up_to_the_original_length_and_all_beyond(scaling: RotaryScaling) -> None:
    plain, layer = RotaryEmbedding(16), RotaryEmbedding(16, scaling=scaling)
    q, k = torch.randn(2, 1, 2, 200, 16)
    for a, b in zip(plain(q[:, :, :64], k[:, :, :64]), layer(q[:, :, :64], k[:, :, :64]), strict=True):
        assert torch.equal(a, b)
    long, plainly = layer(q, k)[0], plain(q, k)[0]
    assert (long[:, :, 64:] - plainly[:, :, 64:]).abs().max() > 0.1
    of_length = {} if isinstance(scaling, LinearScaling | NTKScaling) else {"original_length": 64}
    fixed = type(scaling)(factor=200 / 64, **of_length)
    assert_close(long, RotaryEmbedding(16, scaling=fixed)(q, k)[0])


@pytest.mark.parametrize("kind", [YarnScaling, Llama3Scaling])
@pytest.mark.parametrize("factor", [2.5, 7.5, 40.0, 64.5])
def test_the_fastest_pairs_keep_their_frequency_and_the_slowest_are_divided(kind: Any, factor: float) -> None:
    """To the bit, and in the wider dtype of frequencies and factor."""
    for base in (1e4, 5e5, 1e6):
        frequencies = rotary_frequencies(128, base=base)
        scaled = kind(original_length=8192, factor=factor).formula(frequencies, factor, base)
        turns = 8192 * frequencies / (2 * math.pi)
        assert torch.equal(scaled[turns > 33], frequencies[turns > 33])
        assert torch.equal(scaled[turns < 0.5], (frequencies / factor)[turns < 0.5])
        factors = torch.tensor([[factor]], dtype=torch.float64)
        assert kind(original_length=64).formula(frequencies, factors, base).dtype == torch.float64


def test_longrope_reads_its_long_factors_beyond_the_original_length() -> None:
    scaling = LongRopeScaling((1.0, 1.0), (2.0, 4.0), 10, 4.0)
    plain = rotary_frequencies(4)
    at_ten, beyond = (scaling.scaled(plain, base=1e4, length=torch.tensor(n))[0] for n in (10, 11))
    assert torch.equal(at_ten, plain)
    assert torch.equal(beyond, plain / torch.tensor([2.0, 4.0]))


def test_attention_factor_is_on_queries_and_keys() -> None:
    q, k = torch.randn(2, 1, 1, 3, 8)
    plain = RotaryEmbedding(8, scaling=YarnScaling(64, factor=2.0, attention_factor=1.0))(q, k)
    twice = RotaryEmbedding(8, scaling=YarnScaling(64, factor=2.0, attention_factor=2.0))(q, k)
    for a, b in zip(plain, twice, strict=True):
        assert_close(2 * a, b)


def test_the_constructor_is_shown() -> None:
    assert repr(RotaryEmbedding(8, scaling=LinearScaling(factor=2.0))).endswith(
        "scaling=LinearScaling(factor=2.0, original_length=None), pairs=None)"
    )


def test_meta_device() -> None:
    with torch.device("meta"):
        q, _ = RotaryEmbedding(8, scaling=NTKScaling(original_length=4))(*torch.randn(2, 1, 1, 9, 8))
    assert q.shape == (1, 1, 9, 8)


@pytest.mark.parametrize("scaling", FOLLOWING, ids=lambda s: type(s).__name__)
def test_padded_packed_sharded_and_cached_are_alone(scaling: RotaryScaling) -> None:
    """Two texts: one within the original length, one beyond it."""
    layer = RotaryEmbedding(8, scaling=scaling)
    short, long = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 20, 8)
    alone, alone_long = layer(short, short)[0], layer(long, long)[0]

    def turned(x: Tensor, *ids: Tensor, **more: object) -> Tensor:
        return layer(x, x, *ids, **more)[0]

    mask = torch.tensor([[0] * 15 + [1] * 5, [1] * 20])
    padded = turned(torch.cat([F.pad(short, (0, 0, 15, 0)), long]), from_mask(mask))
    assert torch.equal(padded[:, :, 15:], torch.cat([alone, alone_long[:, :, 15:]]))
    assert torch.equal(padded[1:], alone_long)
    batch = torch.cat([F.pad(short, (0, 0, 0, 15)), long])
    shared = turned(batch, torch.arange(20), text_length=torch.tensor([5, 20]))
    assert torch.equal(shared[:1, :, :5], alone)
    assert torch.equal(shared[1:], alone_long)
    ids, both = torch.cat([torch.arange(5), torch.arange(20)]), torch.cat([short, long], dim=2)
    packed = turned(both, ids, text_length=torch.tensor([[5] * 5 + [20] * 20]))
    assert torch.equal(packed, torch.cat([alone, alone_long], dim=2))
    shards = [turned(part, offset=at, text_length=20) for at, part in ((0, long[:, :, :8]), (8, long[:, :, 8:]))]
    assert torch.equal(torch.cat(shards, dim=2), alone_long)
    last_q, all_k = layer.at_queries_keys(long[:, :, -1:], long, torch.tensor([19]), torch.arange(20))
    assert torch.equal(last_q, alone_long[:, :, -1:])
    assert torch.equal(all_k, alone_long)
    for short_of, offset in ((long, 0), (long[:, :, :1], 19)):
        with pytest.raises(ArgumentError, match="it is above every position; got 19 for position 19"):
            turned(short_of, offset=offset, text_length=19)
    first_q, all_k = layer.at_queries_keys(long[:, :, :3], long, torch.arange(3), torch.arange(20))
    assert torch.equal(first_q, alone_long[:, :, :3]), "queries and keys of one text have one length"
    assert torch.equal(all_k, alone_long)
