"""Attention in blocks, for biases of the distance alone, is attention with the dense bias.

Positions given by row, (B, L), have the dense bias: nothing says that all rows have the same distances.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from posembed import Alibi
from posembed.lab.cost.instruments import peak_bytes
from posembed.layers import T5Bias
from posembed.layers.score_bias import Formula, ScoreBias
from posembed.nn import Decoder, Encoder, Positions, Sizes, encoding_by_name, toeplitz
from posembed.nn.attend import attend, causal_mask
from posembed.nn.toeplitz import ROWS, ToeplitzBias, toeplitz_bias
from together import together
from tolerance import assert_close

DIM, HEADS = 16, 4
NAMES = ("learned-averaged", "t5", "kerple-log", "kerple-power", "alibi")
MODELS = [*NAMES, *(f"encoder {name}" for name in NAMES[1:4])]


def model_of(name: str, **options: object) -> Decoder | Encoder:
    """In float64, with weights far from their small start, so that attention is far from even."""
    kind: Callable[..., Decoder | Encoder] = Encoder if name.startswith("encoder ") else Decoder
    sizes = Sizes(dim=DIM, heads=HEADS, kv_heads=2, max_len=40, window=5, causal=kind is Decoder)
    encoding = encoding_by_name(name.split()[-1], sizes)
    model = kind(dim=DIM, heads=HEADS, kv_heads=2, layers=2, encoding=encoding, **options).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def tokens(batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


def by_row(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)).expand(x.size(0), -1)


def with_gradients(model: Decoder | Encoder, x: Tensor, **layout: Tensor) -> tuple[Tensor, ...]:
    y = model(x, **layout)
    inputs = [x, *model.parameters()]
    return y, *torch.autograd.grad(y.square().sum(), inputs, materialize_grads=True, allow_unused=True)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for biases without a gradient too, at any length."""
    monkeypatch.setattr(toeplitz, "DENSE_UP_TO", 0)


def is_in_blocks(model: Decoder | Encoder, x: Tensor, **layout: Tensor) -> bool:
    positions = Positions(model.encoding, x, causal=model.causal, **layout)
    return isinstance(positions.bias(lambda rows: torch.cat((rows, rows), dim=-1), DIM // HEADS), ToeplitzBias)


@pytest.mark.usefixtures("always")
@together(
    "name, window",
    [(name, None) for name in MODELS] + list(product(NAMES, [1, 40])),
    usual=lambda name, window: window is None or NAMES.index(name) % 2 == (window == 40),
)
def test_values_and_gradients_are_those_of_the_dense_bias(name: str, window: int | None) -> None:
    model = model_of(name)
    model.encoding.window = window
    for batch, length in ((3, ROWS + 1), (1, 2 * ROWS + 13)):
        x = tokens(batch, length).requires_grad_()
        assert is_in_blocks(model, x)
        assert not is_in_blocks(model, x, position_ids=by_row(x))
        dense = with_gradients(model, x, position_ids=by_row(x))
        assert_close(with_gradients(model, x), dense, depth=2, scale=dense)
        assert any(gradient.abs().max() > 1e-3 for gradient in dense[2:])


@settings(max_examples=40)
@given(
    st.integers(5, 30),
    st.integers(0, 3),
    st.sampled_from([(3, 3), (4, 2), (4, 1)]),
    st.sampled_from([(False, None), (True, None), (True, 1), (True, 6), (True, 90)]),
    st.integers(1, 60),
)
def test_any_size_and_grouping(
    length: int, batch: int, heads: tuple[int, int], seen: tuple[bool, int | None], at_once: int
) -> None:
    """With blocks of four queries."""
    causal, window = seen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toeplitz, "ROWS", 4)
        patch.setattr(toeplitz, "WEIGHTS_AT_ONCE", at_once)
        generator = torch.Generator().manual_seed(length)
        shapes = [(batch, heads[0], length, 5), (batch, heads[1], length, 5), (batch, heads[1], length, 3)]
        shapes.append((heads[0], 2 * length - 1))
        inputs = [torch.randn(s, dtype=torch.float64, generator=generator, requires_grad=True) for s in shapes]
        q, k, v, diagonals = inputs
        dense = diagonals.unfold(-1, length, 1).flip(-2)
        if causal:
            dense = dense.masked_fill(~causal_mask(length, window), float("-inf"))
        grown = [x.repeat_interleave(heads[0] // heads[1], dim=1) for x in (k, v)]
        expected = F.scaled_dot_product_attention(q, *grown, attn_mask=dense.unsqueeze(0))
        y = attend(q, k, v, toeplitz_bias(diagonals, causal=causal, window=window), causal=causal, window=window)
        weights = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
        assert_close(y, expected)
        ours, theirs = (torch.autograd.grad((z * weights).sum(), inputs, materialize_grads=True) for z in (y, expected))
        assert_close(ours, theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_derivatives_of_derivatives_and_several_at_once(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toeplitz, "ROWS", 3)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 5, 2)] * 3 + [(2, 9)]
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator, requires_grad=True) for s in shapes]

    def attended(q: Tensor, k: Tensor, v: Tensor, diagonals: Tensor) -> Tensor:
        return attend(q, k, v, toeplitz_bias(diagonals, causal=causal), causal=causal)

    assert torch.autograd.gradcheck(attended, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(attended, inputs)


@torch.no_grad()
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["learned-averaged", "t5", "encoder kerple-log"])
def test_layouts_that_are_masked_have_the_numbers_of_each_text(name: str) -> None:
    """Padded on the left, packed, and after a cache."""
    model, x = model_of(name), tokens(1, ROWS + 9)
    y = model(x)
    padded = model(F.pad(x, (0, 0, 5, 0)), mask=F.pad(torch.ones(1, ROWS + 9), (5, 0)))
    assert_close(padded[:, 5:], y)
    packed = model(torch.cat((x, x[:, :7]), dim=1), segment_ids=(torch.arange(ROWS + 16) >= ROWS + 9).long())
    assert_close(packed[:, : ROWS + 9], y)
    if isinstance(model, Decoder):
        cache = model.new_cache(1, ROWS + 9)
        steps = [model(part, cache=cache) for part in x.split([ROWS + 5, 3, 1], dim=1)]
        assert_close(torch.cat(steps, dim=1), y)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, in forward mode
def test_ways_of_differentiating() -> None:
    """torch.func's gradients and derivatives along a direction, recomputed activations, and a compiled model."""
    model, x = model_of("encoder t5"), tokens(2, ROWS + 5)
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    _, _, *expected = with_gradients(model, x.requires_grad_())

    def loss(values: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(model, values, (x.detach(),))
        return y.square().sum()

    assert_close([*torch.func.grad(loss)(parameters).values()], expected)
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no derivatives along a direction
        _, slope = torch.func.jvp(loss, (parameters,), (parameters,))
    assert_close(slope, sum((g * p).sum() for g, p in zip(expected, parameters.values(), strict=True)))
    model.checkpoint_activations = True
    assert_close(with_gradients(model, x)[2:], tuple(expected))
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert_close(compiled(x), model(x))


@pytest.mark.parametrize("causal", [True, False])
def test_bfloat16_rounds_no_more_than_the_dense_bias(causal: bool) -> None:
    """As the dtype of queries, and under autocast. PyTorch's fused kernel rounds a little more than its plain one."""
    length = 2 * ROWS + 9
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, HEADS, length, 8)] * 3 + [(HEADS, 2 * length - 1)]
    wide = [torch.randn(shape, generator=generator).bfloat16().float() for shape in shapes]

    def gradients(inputs: list[Tensor], *, blocks: bool) -> list[Tensor]:
        inputs = [x.detach().requires_grad_() for x in inputs]
        bias = toeplitz_bias(inputs[3], causal=causal)
        if not blocks:
            dense = inputs[3].unfold(-1, length, 1).flip(-2)
            bias = dense.masked_fill(~causal_mask(length, None), float("-inf")) if causal else dense
        y = attend(*inputs[:3], bias, causal=causal)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    exact = gradients([x.double() for x in wide], blocks=False)
    for autocast in (False, True):
        inputs = wide if autocast else [*(x.bfloat16() for x in wide[:3]), wide[3]]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = {blocks: gradients(inputs, blocks=blocks) for blocks in (True, False)}
        for ours, theirs, true in zip(found[True], found[False], exact, strict=True):
            assert ours.dtype == theirs.dtype
            assert (ours.double() - true).norm() < 1.3 * (theirs.double() - true).norm() < 0.05 * true.norm()


@pytest.mark.parametrize("trained", [True, False])
def test_memory_is_linear_in_the_length(trained: bool) -> None:
    model = Decoder(dim=8, heads=4, layers=1, encoding="learned-averaged", max_len=40).requires_grad_(trained)

    def peak(length: int) -> int:
        x = torch.randn(1, length, 8)
        return peak_bytes(lambda: model(x).sum().backward() if trained else model(x))

    short, long = peak(1500), peak(3000)
    assert long < 2.2 * short
    assert long < 4 * 4 * 3000 * 3000 / 10  # a tenth of the dense bias in float32


class HidesItself(ScoreBias):
    """Token 0 sees no token."""

    of_distance_alone = True

    def formula(self, device: torch.device) -> Formula:
        learned = torch.ones((), device=device, requires_grad=True)
        return lambda head, q, k: torch.where(q == k, float("-inf"), -learned * (q - k + head))


class Doubled(T5Bias):
    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return 2 * super().at_scores(q_positions, k_positions)


@pytest.mark.parametrize("encoding", [HidesItself(HEADS), Doubled(HEADS, std=1.0, bidirectional=False)])
def test_biases_for_which_only_the_dense_path_is_right(encoding: ScoreBias) -> None:
    model, x = Decoder(dim=DIM, heads=HEADS, layers=1, encoding=encoding).double(), tokens(2, ROWS + 3)
    y = model(x)
    assert y.isfinite().all()
    assert torch.equal(y, model(x, position_ids=by_row(x)))


def test_a_bias_without_a_gradient_is_dense_up_to_its_length() -> None:
    """So ALiBi keeps its numbers, to the last bit."""
    model = Decoder(dim=DIM, heads=HEADS, layers=1, encoding=Alibi(HEADS))
    lengths = (ROWS, 512, toeplitz.DENSE_UP_TO, toeplitz.DENSE_UP_TO + 1)
    assert [is_in_blocks(model, torch.empty(1, n, DIM)) for n in lengths] == [False, False, False, True]
