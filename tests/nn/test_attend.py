from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention

from largest import Largest
from posembed import PositionEncoding
from posembed.layers import NoPosition, T5Bias
from posembed.layers.alibi import Alibi
from posembed.nn import Positions
from posembed.nn import attend as module
from posembed.nn.attend import Bias, attend, causal_mask, flex_bias, scale_by_log_length
from together import together
from tolerance import assert_close


def oracle(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, window: int | None) -> Tensor:
    """Softmax written out, one query at a time."""
    y = torch.zeros_like(v)
    for i in range(q.size(-2)):
        first = 0 if window is None else max(0, i - window + 1)
        scores = (k[:, :, first : i + 1] @ q[:, :, i].unsqueeze(-1)).squeeze(-1) / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias[..., i, first : i + 1]
        y[:, :, i] = (scores.softmax(-1).unsqueeze(-1) * v[:, :, first : i + 1]).sum(-2)
    return y


def hidden(bias: Tensor, window: int | None) -> Tensor:
    """The bias, -inf for what a causal text with this window does not see."""
    return bias.masked_fill(~causal_mask(bias.size(-1), window), float("-inf"))


def bias_of(encoding: PositionEncoding, position_ids: Tensor) -> Bias | None:
    tokens = torch.empty(2, position_ids.size(-1), 1)
    return Positions(encoding, tokens, position_ids).bias(lambda rows: rows, head_dim=64)


def heads(length: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 4, dtype=torch.float64, generator=generator) for _ in range(3)]


@settings(max_examples=40)
@given(st.integers(1, 45), st.one_of(st.none(), st.integers(1, 50)), st.booleans())
def test_every_path_is_the_softmax_written_out(length: int, window: int | None, biased: bool) -> None:
    q, k, v = heads(length)
    bias = Alibi(3)(length).double() if biased else None
    y = attend(q, k, v, None if bias is None else hidden(bias, window), causal=True, window=window)
    assert_close(y, oracle(q, k, v, bias, window))


@pytest.mark.parametrize(("length", "window"), [(40, 3), (41, 4), (9, 1)])
def test_blocks_have_the_gradients_of_the_dense_mask(length: int, window: int) -> None:
    """At these lengths attend walks in blocks; SDPA under a dense mask is what it must equal."""
    inputs = [x.requires_grad_() for x in heads(length)]
    weights = torch.randn(2, 3, length, 4, dtype=torch.float64)
    blocks = torch.autograd.grad((attend(*inputs, None, causal=True, window=window) * weights).sum(), inputs)
    mask = causal_mask(length, window)
    dense = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask)
    for ours, theirs in zip(blocks, torch.autograd.grad((dense * weights).sum(), inputs), strict=True):
        assert_close(ours, theirs, scale=weights)


def test_a_bias_by_row() -> None:
    q, k, v = heads(6)
    bias = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    y = attend(q, k, v, hidden(bias, 4), causal=True, window=4)
    assert_close(y, oracle(q, k, v, bias, 4))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("by_row", [False, True])
def test_flex_attention_is_the_dense_path(monkeypatch: pytest.MonkeyPatch, window: int | None, by_row: bool) -> None:
    """Without compiling, which a CPU need not do to have the same numbers."""
    monkeypatch.setattr(module, "compiled", lambda name: getattr(flex_attention, name))
    encoding = T5Bias(3, std=1.0, bidirectional=False).double()
    encoding.window = window
    positions = torch.stack((torch.arange(20), 3 * torch.arange(20))) if by_row else torch.arange(20)
    dense = bias_of(encoding, positions)
    assert isinstance(dense, Tensor)
    with torch.no_grad():  # FlexAttention has no gradients on a CPU
        flex = flex_bias(encoding, positions)
        y = attend(*heads(20), flex, causal=True, window=window)
        assert_close(y, attend(*heads(20), dense, causal=True, window=window))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@together(
    "name, packed, causal",
    list(product(["bias", "no bias"], [True, False], [True, False])),
    usual=lambda name, packed, causal: packed or causal == (name == "bias"),
)
def test_flex_attention_hides_packed_texts_from_each_other(
    monkeypatch: pytest.MonkeyPatch, name: str, packed: bool, causal: bool
) -> None:
    """With grouped heads, as the dense mask does."""
    monkeypatch.setattr(module, "compiled", lambda name: getattr(flex_attention, name))
    encoding = T5Bias(3, std=1.0, bidirectional=not causal).double() if name == "bias" else NoPosition()
    texts = torch.tensor([[0] * 7 + [1] * 13, [0] * 20]) if packed else None
    positions = Positions(encoding, torch.empty(2, 20, 1), causal=causal, segment_ids=texts)
    q, k, v = heads(20)
    k, v = k[:, :1], v[:, :1]
    flex = flex_bias(encoding, positions.q_positions, causal=causal, texts=positions.texts)
    if name == "no bias" and not packed:
        assert flex is None  # scaled_dot_product_attention needs none
        return
    dense = positions.bias(lambda rows: rows, head_dim=64, dense=True)
    assert isinstance(dense, Tensor)
    y = attend(q, k, v, flex, causal=causal)
    assert_close(y, attend(q, k, v, dense, causal=causal))


def test_a_bias_in_dense_form_alone_is_not_lost() -> None:
    class DenseAlone(PositionEncoding):
        def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
            return torch.zeros(1, len(q_positions), len(k_positions))

    assert flex_bias(DenseAlone(), torch.arange(3)) is None
    assert flex_bias(DenseAlone(), torch.arange(3), texts=torch.zeros(1, 3)) is None
    assert bias_of(DenseAlone(), torch.arange(3)) is not None
    assert bias_of(NoPosition(), torch.arange(3)) is None


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(2, 12), st.one_of(st.none(), st.integers(1, 30)))
def test_logits_grow_with_the_logarithm_of_what_is_seen(length: int, trained: int, window: int | None) -> None:
    q, k, v = heads(length)
    scaled = scale_by_log_length(q, torch.arange(1, length + 1), trained, window)
    for i in range(length):
        seen = min(i + 1, window or length)
        times = (math.log(seen) / math.log(trained)) if seen > trained else 1.0
        assert_close(scaled[:, :, i], times * q[:, :, i])
    shown = min(length, trained)
    assert torch.equal(scaled[:, :, :shown], q[:, :, :shown])
    y = attend(scaled, k, v, None, causal=True, window=window)
    assert torch.equal(attend(q, k, v, None, causal=True, window=window)[:, :, :shown], y[:, :, :shown])


@together("default", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@together("dtype", [torch.float32, torch.float64])
def test_the_factor_is_as_accurate_as_the_queries(default: torch.dtype, dtype: torch.dtype) -> None:
    seen = torch.tensor([4, 5, 1001, 10**6 + 1])
    expected = torch.tensor([max(1.0, math.log(n) / math.log(4)) for n in seen.tolist()], dtype=torch.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        scaled = scale_by_log_length(torch.ones(1, 1, 4, 1, dtype=dtype), seen, 4, None)
    finally:
        torch.set_default_dtype(before)
    assert scaled.dtype == dtype
    assert_close(scaled.flatten().double(), expected, dtype=dtype, terms=1, relative=True)


@pytest.mark.parametrize(("length", "window"), [(1, None), (40, None), (40, 30), (100, 5)])
def test_keys_wider_than_values_give_the_numbers_and_gradients_of_the_definition(
    length: int, window: int | None
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, length, d, dtype=torch.float64, requires_grad=True) for d in (32, 32, 16)]
    plain, ours = oracle_of_widths(*inputs, window), attend(*inputs, None, causal=True, window=window)
    assert_close(ours, plain)
    weights = torch.randn_like(plain)
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, plain)]
    assert_close(*gradients, depth=2)


def oracle_of_widths(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Softmax over all (L, L) scores."""
    hidden = ~causal_mask(q.size(-2), window)
    return ((q @ k.mT) / q.size(-1) ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def test_keys_wider_than_values_take_linear_memory() -> None:
    length = 2048
    q, k, v = (torch.randn(1, 1, length, d, requires_grad=True) for d in (32, 32, 16))
    with Largest() as seen:
        attend(q, k, v, None, causal=True).sum().backward()
    assert 0 < seen.elements < length**2 / 8
