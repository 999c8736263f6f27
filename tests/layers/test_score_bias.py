"""What every bias on the scores promises, dense and as FlexAttention's score_mod."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from posembed import Alibi
from posembed.errors import ArgumentError
from posembed.layers import Fire, KerpleLog, KerplePower, NoPosition, T5Bias
from posembed.layers.score_bias import Formula, ScoreBias
from together import pairwise
from tolerance import assert_close

BIASES: dict[str, Callable[[int], ScoreBias]] = {
    "alibi": Alibi,
    "t5": lambda heads: T5Bias(heads, std=1.0),
    "t5 causal": lambda heads: T5Bias(heads, std=1.0, bidirectional=False),
    "kerple log": KerpleLog,
    "kerple power": KerplePower,
    "fire": lambda heads: Fire(heads, threshold=6.0),
}
every_bias = pytest.mark.parametrize("build", BIASES.values(), ids=BIASES)
every_learned_bias = pytest.mark.parametrize("build", [*BIASES.values()][1:], ids=[*BIASES][1:])
without_compiling = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def from_score_mod(bias: ScoreBias, q_positions: Tensor, k_positions: Tensor, batch: int) -> Tensor:
    """The score_mod called for each pair alone, on a score of 0: (B, H, Lq, Lk)."""
    change = bias.score_mod(q_positions, k_positions)
    shape = batch, bias.heads, q_positions.size(-1), k_positions.size(-1)
    rows = [change(torch.zeros(()), *index) for index in torch.cartesian_prod(*map(torch.arange, shape))]
    return torch.stack(rows).view(shape)


@every_bias
@settings(max_examples=6)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 300), st.booleans())
def test_score_mod_is_the_dense_bias(
    build: Callable[[int], ScoreBias], heads: int, q_length: int, k_length: int, start: int, by_row: bool
) -> None:
    bias = build(heads)
    k_positions, q_positions = torch.arange(k_length) * 3, start + torch.arange(q_length)
    if by_row:
        k_positions, q_positions = (torch.stack((p, p + 7)) for p in (k_positions, q_positions))
    dense = bias.at_scores(q_positions, k_positions)
    assert dense.shape == ((2,) if by_row else ()) + (heads, q_length, k_length)
    modded = from_score_mod(bias, q_positions, k_positions, 2 if by_row else 1)
    assert_close(modded, dense.expand_as(modded))


@every_bias
@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 200), st.integers(0, 200))
def test_consecutive_positions_along_diagonals_are_all_pairs(
    build: Callable[[int], ScoreBias], q_length: int, k_length: int, q_start: int, k_start: int
) -> None:
    """By row positions take no shortcut; consecutive ones may."""
    bias = build(3)
    q_positions, k_positions = q_start + torch.arange(q_length), k_start + torch.arange(k_length)
    dense = bias.at_scores(q_positions, k_positions)
    pairs = bias.at_scores(q_positions[None], k_positions[None])[0]
    assert_close(dense, pairs)
    parameters = list(bias.parameters())
    if parameters:
        weights = torch.randn(3, q_length, k_length)
        ours, theirs = (torch.autograd.grad((y * weights).sum(), parameters) for y in (dense, pairs))
        assert_close(ours, theirs, depth=2)


def test_a_formula_of_more_than_the_distance_need_not_say_so() -> None:
    class OfTheKey(ScoreBias):
        def formula(self, device: torch.device) -> Formula:
            return lambda head, q, k: (k + head).float().expand(torch.broadcast_shapes(head.shape, q.shape, k.shape))

    bias = OfTheKey(2)(4)
    assert torch.equal(bias[1], torch.arange(1.0, 5.0).expand(4, -1))


@every_bias
def test_it_maps_over_positions(build: Callable[[int], ScoreBias]) -> None:
    bias = build(2)
    starts = torch.tensor([0, 4, 90])[:, None] + torch.arange(5)
    mapped = torch.func.vmap(lambda p: bias.at_scores(p, p))(starts)
    assert_close(mapped, bias.at_scores(starts, starts))


@every_learned_bias
def test_score_mod_has_the_gradients_of_the_dense_bias(build: Callable[[int], ScoreBias]) -> None:
    bias = build(2)
    parameters = list(bias.parameters())
    positions = torch.arange(5)
    weights = torch.randn(2, 5, 5)
    dense = torch.autograd.grad((bias.at_scores(positions, positions) * weights).sum(), parameters)
    modded = torch.autograd.grad((from_score_mod(bias, positions, positions, 1)[0] * weights).sum(), parameters)
    for ours, theirs in zip(modded, dense, strict=True):
        assert_close(ours, theirs, depth=2)


@without_compiling
@pytest.mark.parametrize(("build", "by_row"), pairwise(BIASES.values(), [False, True]))
def test_flex_attention_gives_what_the_dense_bias_gives(build: Callable[[int], ScoreBias], by_row: bool) -> None:
    bias = build(3)
    q, k, v = torch.randn(3, 2, 3, 9, 8)
    positions = torch.stack((torch.arange(9), 2 * torch.arange(9))) if by_row else torch.arange(9)
    q_positions, q = positions[..., 6:], q[:, :, 6:]  # a cache: three queries of nine tokens
    dense = bias.at_scores(q_positions, positions)
    with torch.no_grad():
        y = flex_attention(q, k, v, score_mod=bias.score_mod(q_positions, positions))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense.expand(2, 3, 3, 9))
    assert_close(y, expected)


def test_score_mod_can_be_traced_whole() -> None:
    """As the compiler meets it; a second length must not be compiled as if it were the first."""
    torch.compiler.reset()
    bias = T5Bias(2, std=1.0, bidirectional=False)
    compiled = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    for length in (9, 17):
        positions = torch.arange(length)
        q, k, v = torch.randn(3, 1, 2, length, 8)
        with torch.no_grad():
            y = compiled(q, k, v, score_mod=bias.score_mod(positions, positions))
            expected = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=bias.at_scores(positions, positions)
            )
        assert_close(y, expected)


@every_bias
def test_decoding_reads_the_last_rows(build: Callable[[int], ScoreBias]) -> None:
    bias = build(2)
    assert_close(bias(3, 20), bias(20)[:, -3:])
    with pytest.raises(ArgumentError, match="k_length=3, the number of tokens; got 5"):
        bias(5, 3)


@every_bias
def test_bfloat16_models_compute_in_float32(build: Callable[[int], ScoreBias]) -> None:
    bias = build(2).to(torch.bfloat16)
    assert bias(300).dtype == torch.float32
    wider = build(2).double()
    wider.load_state_dict(bias.state_dict())
    assert_close(bias(300), wider(300).float())


def test_no_position_has_no_score_mod() -> None:
    assert NoPosition().score_mod(torch.arange(3), torch.arange(3)) is None
