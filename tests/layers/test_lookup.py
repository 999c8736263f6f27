"""A lookup against its formula in float64, in pieces of any size: what it gives, its gradients, its operator."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import oracles_lookup as oracle
from posembed.layers import lookup as module
from posembed.layers.lookup import Request, backward, draw_keep, forward, generator_of, lookup, plain
from together import together
from tolerance import assert_close

ALL = [True] * 5
cases = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits in one piece is left to the definition, so pieces are small here."""
    monkeypatch.setattr(module, "PIECE", 8)
    torch.manual_seed(0)


requests = st.builds(
    oracle.request_of,
    batch=st.sampled_from([0, 1, 4]),
    length=st.sampled_from([0, 1, 7]),
    dim=st.sampled_from([1, 5, 8]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    position_ids=st.sampled_from(["none", "shared", "own", "no table"]),
    type_ids=st.sampled_from(["none", "own", "no table"]),
    norm=st.sampled_from(["none", "layer", "rms"]),
    dropout=st.sampled_from([0.0, 0.25]),
    padding_idx=st.sampled_from([None, 2]),
    scale=st.sampled_from([1.0, 2.5]),
)


@cases
@given(request=requests, piece=st.sampled_from([1, 8, 40, 1 << 18]))
def test_numbers_and_gradients_are_those_of_the_formula(request: Request, piece: int) -> None:
    module.PIECE = piece
    if request.norm == "layer" and request.tokens.shape[1] == 1:
        return  # the norm of one element is 0 / eps
    upstream = torch.randn(request.shape).to(request.dtype)
    keep = None
    if request.seed is not None:
        keep = draw_keep(generator_of(request.seed), request.shape, request.dropout, request.dtype)
    expected, gradients = oracle.with_gradients(request, upstream, keep)
    out = forward(request)
    assert out.dtype == request.dtype
    assert_close(out, expected, depth=2, dtype=request.dtype)
    found = dict(zip(oracle.TABLES, backward(upstream, request, ALL), strict=True))
    for name, gradient in found.items():
        table = getattr(request, name)
        if table is None:
            assert gradient is None
        else:
            assert gradient.dtype == table.dtype
            assert_close(gradient, gradients[name], depth=4, scale=gradients, dtype=request.dtype)


@cases
@given(request=requests, piece=st.sampled_from([1, 8, 40]))
def test_pieces_of_any_size_give_the_definitions_bits(request: Request, piece: int) -> None:
    module.PIECE = piece
    keep = None
    if request.seed is not None:
        keep = draw_keep(generator_of(request.seed), request.shape, request.dropout, request.dtype)
    assert torch.equal(forward(request), plain(request, keep))


def called(request: Request, tables: tuple[Tensor | None, ...], **more: Any) -> Tensor:
    """``lookup`` with the settings of a request and other tables; it draws a seed of its own."""
    return lookup(replace(request, **dict(zip(oracle.TABLES, tables, strict=True)), seed=None, **more))


def tables_of(request: Request) -> tuple[Tensor | None, ...]:
    tables = (getattr(request, name) for name in oracle.TABLES)
    return tuple(None if table is None else table.clone().requires_grad_() for table in tables)


NORMS, PLACES = ["none", "layer", "rms"], ["none", "shared", "own"]


@together(
    "norm, position_ids",
    list(product(NORMS, PLACES)),
    usual=lambda norm, position_ids: NORMS.index(norm) == PLACES.index(position_ids),
)
def test_gradients_and_their_gradients_by_differences(norm: str, position_ids: str) -> None:
    request = oracle.request_of(
        batch=2, length=3, dim=3, dtype=torch.float64, norm=norm, position_ids=position_ids, type_ids="own", scale=2
    )
    given_tables = tables_of(request)
    inputs = tuple(table for table in given_tables if table is not None)

    def function(*inputs: Tensor) -> Tensor:
        remaining = iter(inputs)
        return called(request, tuple(None if table is None else next(remaining) for table in given_tables))

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_gradients_of_gradients_know_what_was_dropped() -> None:
    request = oracle.request_of(dtype=torch.float64, dropout=0.5, norm="rms")
    tables = tables_of(request)

    def penalty(create_graph: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        out = called(request, tables)
        return out, torch.autograd.grad(out.square().sum(), tables[0], create_graph=create_graph)[0]

    out, once = penalty(False)
    _, again = penalty(True)
    assert_close(once, again)
    again.square().sum().backward()
    assert tables[0].grad is not None
    assert bool((out == 0).any())


def test_only_gradients_that_are_asked_for() -> None:
    request = oracle.request_of(type_ids="own")
    tokens, positions, types, weight, bias = tables_of(request)
    out = called(request, (tokens.detach(), positions, types.detach(), weight.detach(), bias))
    out.sum().backward()
    assert positions.grad is not None
    assert bias.grad is not None
    assert tokens.grad is types.grad is weight.grad is None


def test_narrow_tables_add_their_gradients_up_in_float32() -> None:
    """4,000 gradients of 1: in bfloat16 the sum would stop at 256."""
    tokens = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    types = torch.zeros(2, 2, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.ones(40, 100, dtype=torch.int64)
    lookup(Request(ids, tokens, types=types, type_ids=ids)).sum().backward()
    assert tokens.grad[1].tolist() == types.grad[1].tolist() == [4000.0, 4000.0]


class Made(TorchDispatchMode):
    """The number of elements of each tensor that an operator makes, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for made in result if isinstance(result, tuple) else (result,):
                if isinstance(made, Tensor) and not any(made is arg for arg in args):
                    self.elements.append(made.numel())
        return result


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_nothing_larger_than_a_piece_is_made_but_the_result(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 40)
    request = oracle.request_of(batch=9, length=11, dim=5, norm=norm, type_ids="own", position_ids="own")
    with Made() as made:
        out = forward(request)
        backward(out, request, ALL)
    largest_piece = max(40, request.positions.numel())
    assert [count for count in made.elements if count > largest_piece] == [out.numel()]


# Dropout


def test_dropout_drops_its_share_and_scales_the_rest() -> None:
    tokens = torch.ones(1, 64)
    ids = torch.zeros(40, 50, dtype=torch.int64)
    for dropout in (0.1, 0.5, 0.9):
        out = lookup(Request(ids, tokens, dropout=dropout))
        dropped = float((out == 0).float().mean())
        deviation = (dropout * (1 - dropout) / out.numel()) ** 0.5
        assert abs(dropped - dropout) < 4 * deviation + 2**-16
        assert (out[out != 0] * (1 - dropout) - 1).abs().max() < 2**-16 / (1 - dropout)  # to which the share is rounded
        rows = (out == 0).float().mean(-1)
        assert abs(float(rows.var()) - dropout * (1 - dropout) / 64) < 0.2 * dropout * (1 - dropout) / 64
    assert not lookup(Request(ids, tokens, dropout=1.0)).any()


def test_dropout_is_drawn_anew_from_pytorchs_seed() -> None:
    tokens, ids = torch.ones(1, 64), torch.zeros(4, 5, dtype=torch.int64)

    def two() -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        return tuple(lookup(Request(ids, tokens, dropout=0.5)) for _ in range(2))

    (first, second), (first_again, second_again) = two(), two()
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)


# Determinism, sparse gradients, other ways through PyTorch


def test_every_run_gives_the_same_bits() -> None:
    request = oracle.request_of(batch=8, length=40, dim=16, position_ids="own", type_ids="own", dropout=0.1)
    upstream = torch.randn(request.shape)
    runs = [backward(upstream, request, ALL) for _ in range(3)]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_a_sparse_gradient_is_the_dense_one(padding_idx: int | None) -> None:
    request = oracle.request_of(padding_idx=padding_idx, scale=3.0)
    dense, sparse = tables_of(request), tables_of(request)
    called(request, dense).square().sum().backward()
    called(request, sparse, sparse=True).square().sum().backward()
    assert sparse[0].grad.is_sparse
    assert_close(sparse[0].grad.to_dense(), dense[0].grad)
    assert_close(sparse[1].grad, dense[1].grad)
    before = sparse[0].detach().clone()
    torch.optim.SparseAdam([sparse[0]], lr=0.1).step()
    read = torch.isin(torch.arange(9), request.token_ids) & (torch.arange(9) != (padding_idx or -1))
    assert torch.equal((sparse[0] != before).any(1), read)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of PyTorch 2.14's opcheck
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_the_operator_is_what_pytorch_expects(norm: str) -> None:
    r = oracle.request_of(norm=norm, position_ids="own", dropout=0.5)
    tokens, positions, types, weight, bias = tables_of(r)
    arguments = (
        r.token_ids, tokens, positions, r.position_ids, types, None, weight, bias, r.seed,
        2.0, norm, 1e-5, 0.5, 1, None, False,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.posembed.lookup.default, arguments)


def test_compiled_for_every_length_with_two_graphs_at_most() -> None:
    tables = tables_of(oracle.request_of(length=30, dim=6))
    torch.compiler.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    function = torch.compile(called, fullgraph=True, dynamic=True, backend=graphs)
    for length in (5, 9, 30):
        request = oracle.request_of(length=length, dim=6)
        out, expected = function(request, tables), called(request, tables)
        assert torch.equal(out, expected)
        wanted = torch.autograd.grad(expected.sum(), tables)
        assert all(map(torch.equal, torch.autograd.grad(out.sum(), tables), wanted))
    assert graphs.frame_count <= 2


def test_an_id_without_a_row() -> None:
    with pytest.raises(IndexError):
        lookup(Request(torch.tensor([[1, 9]]), torch.zeros(9, 5)))


def test_a_table_that_changes_before_the_backward_pass_is_an_error() -> None:
    """The backward pass reads the tables again, and must not read others."""
    tokens = torch.randn(9, 128, requires_grad=True)
    out = lookup(Request(torch.randint(9, (40, 200)), tokens, norm="layer", eps=1e-5))
    with torch.no_grad():
        tokens.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
